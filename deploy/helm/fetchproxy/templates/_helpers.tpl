{{/* Names and labels; `kind` is proxy or archiver. */}}
{{- define "fetchproxy.name" -}}
{{- $name := ternary .root.Release.Name (printf "%s-%s" .root.Release.Name .root.Chart.Name) (contains .root.Chart.Name .root.Release.Name) -}}
{{- ternary $name (printf "%s-archiver" $name) (eq .kind "proxy") | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "fetchproxy.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .kind }}
{{- end }}

{{- define "fetchproxy.labels" -}}
{{ include "fetchproxy.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "fetchproxy.metadata" -}}
name: {{ include "fetchproxy.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "fetchproxy.labels" . | nindent 2 }}
{{- end }}

{{- define "fetchproxy.advertiseHost" -}}
{{- $service := include "fetchproxy.name" (dict "root" . "kind" "proxy") -}}
{{- .Values.advertiseHost | default (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) -}}
{{- end }}

{{- define "fetchproxy.nodeMap" -}}
{{- range $number, $node := .Values.brokers }}{{ if $number }},{{ end }}{{ int $node }}={{ add $.Values.ports.nodeBase $node }}{{ end -}}
{{- end }}

{{/* A name and a value of the environment. Large numbers would be written with an exponent. */}}
{{- define "fetchproxy.variable" -}}
- name: {{ .name }}
  value: {{ ternary (printf "%d" (int64 .value)) (toString .value) (kindIs "float64" .value) | quote }}
{{- end }}

{{/* What is set in `config`, and in both kinds of pods. A proxy with archive.topics would archive,
and an archiver has no gateway. */}}
{{- define "fetchproxy.environment" -}}
{{- range $section, $keys := .root.Values.config }}
{{- range $key, $value := $keys }}
{{- $foreign := ternary (eq (printf "%s.%s" $section $key) "archive.topics") (eq $section "gateway") (eq $.kind "proxy") }}
{{- if and (ne (toString $value) "") (not $foreign) }}
{{ include "fetchproxy.variable" (dict "name" (printf "FETCHPROXY_%s_%s" $section $key | upper) "value" $value) }}
{{- end }}
{{- end }}
{{- end }}
{{ include "fetchproxy.variable" (dict "name" "FETCHPROXY_CONSOLE_LISTEN" "value" (printf "0.0.0.0:%d" (int .root.Values.ports.console))) }}
{{ include "fetchproxy.variable" (dict "name" "FETCHPROXY_PROCESS_MEMORY_BYTES_MAX" "value" (printf "%dMiB" (div (mul .pods.memoryMiB 3) 4))) }}
{{- with .root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fetchproxy.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "fetchproxy.replicas" -}}
{{ ternary 1 .pods.replicas .root.Values.playground }}
{{- end }}

{{- define "fetchproxy.resources" -}}
resources:
  requests:
    cpu: {{ ternary "100m" .pods.cpu .root.Values.playground | quote }}
    memory: {{ .pods.memoryMiB }}Mi
  limits:
    memory: {{ .pods.memoryMiB }}Mi
{{- end }}

{{/* Pods of a kind are spread over hosts and zones. */}}
{{- define "fetchproxy.pod" -}}
serviceAccountName: {{ ternary (include "fetchproxy.name" .) "default" .pods.serviceAccount.create }}
automountServiceAccountToken: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001 # the image's user may write the spool, and read certificates
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "fetchproxy.selector" $ | nindent 8 }}
  {{- end }}
{{- with .pods.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "fetchproxy.container" -}}
name: fetchproxy
image: {{ include "fetchproxy.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .root.Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
livenessProbe:
  httpGet: {path: /healthz, port: console}
  failureThreshold: 6
{{ include "fetchproxy.resources" . }}
{{- end }}

{{- define "fetchproxy.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: spool, mountPath: /var/lib/fetchproxy/spool}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fetchproxy.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
