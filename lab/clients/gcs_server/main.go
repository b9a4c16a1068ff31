// gcs-server is fake-gcs-server with the part of Cloud Storage's XML API that it lacks: uploads
// (also conditional and in parts) and listings by page. Storage, reads, ranges, generations and
// their conditions are the emulator's own.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

const pageObjects = 1000 // of a listing, as in Cloud Storage

type front struct {
	server   *fakestorage.Server
	emulator http.Handler
	uploads  string // a folder for each upload in parts
	token    string // what a request has to bear
	// A name is written or deleted once in this time, as in Cloud Storage; 0: no limit.
	interval time.Duration
	lock     sync.Mutex
	changed  map[string]time.Time
}

// Whether the name may be changed now. If not, the refusal is sent.
func (f *front) mayChange(w http.ResponseWriter, bucket, key string) bool {
	if f.interval == 0 {
		return true
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	name, now := bucket+"/"+key, time.Now()
	if last, found := f.changed[name]; found && now.Sub(last) < f.interval {
		fail(w, http.StatusTooManyRequests, "SlowDown",
			"The object exceeded the rate limit for object mutation operations.")
		return false
	}
	f.changed[name] = now
	return true
}

type fault struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	answer(w, fault{Code: code, Message: message})
}

func answer(w io.Writer, value any) {
	text, err := xml.Marshal(value)
	if err != nil {
		log.Fatal(err) // a type of this program
	}
	// The client may be gone; then nobody misses the rest.
	_, _ = io.WriteString(w, xml.Header+string(text))
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if strings.HasPrefix(path, "storage/v1/") || strings.HasPrefix(path, "_internal/") {
		f.emulator.ServeHTTP(w, r)
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+f.token {
		fail(w, http.StatusUnauthorized, "AuthenticationRequired", "the token is not known")
		return
	}
	escapedBucket, escapedKey, _ := strings.Cut(path, "/")
	bucket, err := url.PathUnescape(escapedBucket)
	if err != nil || !f.holds(bucket) {
		fail(w, http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
		return
	}
	key, err := url.PathUnescape(escapedKey)
	if err != nil {
		fail(w, http.StatusBadRequest, "InvalidURI", err.Error())
		return
	}
	query := r.URL.Query()
	switch {
	case key == "" && r.Method == http.MethodGet:
		f.list(w, bucket, query)
	case r.Method == http.MethodPost && query.Has("uploads"):
		f.begin(w, bucket, key)
	case query.Has("uploadId"):
		f.upload(w, r, bucket, key, query)
	case r.Method == http.MethodPut:
		f.put(w, r.Body, bucket, key, r.Header.Get("x-goog-if-generation-match"))
	case r.Method == http.MethodDelete:
		if f.mayChange(w, bucket, key) {
			f.forward(w, r)
		}
	default:
		f.forward(w, r)
	}
}

func (f *front) holds(bucket string) bool {
	done := httptest.NewRecorder()
	path := "/storage/v1/b/" + url.PathEscape(bucket)
	f.emulator.ServeHTTP(done, httptest.NewRequest(http.MethodGet, path, nil))
	return done.Code == http.StatusOK
}

// Reads and deletions are the emulator's; its errors get the XML that Cloud Storage sends.
func (f *front) forward(w http.ResponseWriter, r *http.Request) {
	f.emulator.ServeHTTP(&translating{ResponseWriter: w}, r)
}

type translating struct {
	http.ResponseWriter
	failed bool
}

func (t *translating) WriteHeader(status int) {
	if status < 400 {
		t.ResponseWriter.WriteHeader(status)
		return
	}
	t.failed = true
	t.Header().Del("Content-Length")
	codes := map[int]string{404: "NoSuchKey", 416: "InvalidRange"}
	fail(t.ResponseWriter, status, codes[status], http.StatusText(status))
}

func (t *translating) Write(content []byte) (int, error) {
	if t.failed {
		return len(content), nil
	}
	return t.ResponseWriter.Write(content)
}

// By the emulator's JSON API, which knows the condition.
func (f *front) put(w http.ResponseWriter, body io.Reader, bucket, key, generation string) {
	if !f.mayChange(w, bucket, key) {
		return
	}
	query := url.Values{"uploadType": {"media"}, "name": {key}}
	if generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	target := "/upload/storage/v1/b/" + url.PathEscape(bucket) + "/o?" + query.Encode()
	inner := httptest.NewRequest(http.MethodPost, target, body)
	done := httptest.NewRecorder()
	f.emulator.ServeHTTP(done, inner)
	var made struct{ Etag, Generation string }
	if done.Code == http.StatusPreconditionFailed {
		fail(w, done.Code, "PreconditionFailed", "At least one of the conditions did not hold.")
		return
	}
	if done.Code >= 300 || json.Unmarshal(done.Body.Bytes(), &made) != nil {
		fail(w, http.StatusInternalServerError, "InternalError", done.Body.String())
		return
	}
	w.Header().Set("ETag", `"`+strings.Trim(made.Etag, `"`)+`"`)
	w.Header().Set("x-goog-generation", made.Generation)
	w.WriteHeader(http.StatusOK)
}

type begun struct {
	XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
	Bucket   string
	Key      string
	UploadId string
}

func (f *front) begin(w http.ResponseWriter, bucket, key string) {
	name := make([]byte, 16)
	_, _ = rand.Read(name) // never fails
	id := hex.EncodeToString(name)
	if err := os.Mkdir(filepath.Join(f.uploads, id), 0o700); err != nil {
		fail(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	answer(w, begun{Bucket: bucket, Key: key, UploadId: id})
}

func (f *front) upload(
	w http.ResponseWriter, r *http.Request, bucket, key string, query url.Values,
) {
	folder := filepath.Join(f.uploads, filepath.Base(query.Get("uploadId")))
	if _, err := os.Stat(folder); err != nil {
		fail(w, http.StatusNotFound, "NoSuchUpload", "The requested upload was not found.")
		return
	}
	var err error
	switch r.Method {
	case http.MethodPut:
		err = f.takePart(w, r, folder, query.Get("partNumber"))
	case http.MethodPost:
		err = f.complete(w, r, folder, bucket, key)
	case http.MethodDelete:
		err = os.RemoveAll(folder)
		w.WriteHeader(http.StatusNoContent)
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, "InternalError", err.Error())
	}
}

func (f *front) takePart(w http.ResponseWriter, r *http.Request, folder, number string) error {
	if _, err := strconv.ParseUint(number, 10, 16); err != nil {
		return err
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", `"`+number+`"`)
	return os.WriteFile(filepath.Join(folder, number), content, 0o600)
}

func (f *front) complete(
	w http.ResponseWriter, r *http.Request, folder, bucket, key string,
) error {
	var wanted struct {
		Part []struct{ PartNumber int }
	}
	if err := xml.NewDecoder(r.Body).Decode(&wanted); err != nil {
		return err
	}
	var whole []io.Reader
	for _, part := range wanted.Part {
		content, err := os.ReadFile(filepath.Join(folder, strconv.Itoa(part.PartNumber)))
		if err != nil {
			return err
		}
		whole = append(whole, bytes.NewReader(content))
	}
	done := httptest.NewRecorder()
	f.put(done, io.MultiReader(whole...), bucket, key, "")
	if done.Code != http.StatusOK {
		return fmt.Errorf("%s", done.Body)
	}
	type completed struct {
		XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
		ETag    string
	}
	w.Header().Set("x-goog-generation", done.Header().Get("x-goog-generation"))
	answer(w, completed{ETag: done.Header().Get("ETag")})
	return os.RemoveAll(folder)
}

type entry struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
}

type folder struct{ Prefix string }

type page struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	IsTruncated           bool
	NextContinuationToken string   `xml:",omitempty"`
	Contents              []entry  `xml:"Contents"`
	CommonPrefixes        []folder `xml:"CommonPrefixes"`
}

func (f *front) list(w http.ResponseWriter, bucket string, query url.Values) {
	prefix, delimiter := query.Get("prefix"), query.Get("delimiter")
	after := max(query.Get("start-after"), query.Get("continuation-token"))
	options := fakestorage.ListOptions{Prefix: prefix, Delimiter: delimiter}
	objects, folders, err := f.server.ListObjectsWithOptions(bucket, options)
	if err != nil {
		fail(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	sort.Slice(objects, func(a, b int) bool { return objects[a].Name < objects[b].Name })
	var found page
	for _, name := range folders {
		found.CommonPrefixes = append(found.CommonPrefixes, folder{name})
	}
	for _, object := range objects {
		if object.Name <= after {
			continue
		}
		if len(found.Contents) == pageObjects {
			found.IsTruncated = true
			found.NextContinuationToken = found.Contents[pageObjects-1].Key
			break
		}
		found.Contents = append(found.Contents, entry{
			Key: object.Name, Size: object.Size, ETag: `"` + strings.Trim(object.Etag, `"`) + `"`,
			LastModified: object.Updated.UTC().Format("2006-01-02T15:04:05.000Z"),
		})
	}
	answer(w, found)
}

func main() {
	port := flag.Int("port", 0, "on 127.0.0.1")
	root := flag.String("folder", "", "where objects and uploads lie")
	token := flag.String("token", "", "bearer token that every request of the XML API needs")
	interval := flag.Duration("write-interval", 0, "a name is written once in this time")
	flag.Parse()
	uploads := filepath.Join(*root, "uploads")
	if err := os.MkdirAll(uploads, 0o700); err != nil {
		log.Fatal(err)
	}
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		StorageRoot: filepath.Join(*root, "objects"),
		NoListener:  true,
		// Of any port: a relay may stand before it.
		PublicHost: "127.0.0.1",
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := &front{
		server: server, emulator: server.HTTPHandler(), uploads: uploads, token: *token,
		interval: *interval, changed: map[string]time.Time{},
	}
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), handler))
}
