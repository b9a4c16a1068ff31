module gcs-server

go 1.26

require github.com/fsouza/fake-gcs-server v1.56.1

require (
	cloud.google.com/go/compute/metadata v0.9.0 // indirect
	cloud.google.com/go/pubsub/v2 v2.6.2 // indirect
	cloud.google.com/go/storage v1.65.0 // indirect
	github.com/felixge/httpsnoop v1.0.4 // indirect
	github.com/google/renameio/v2 v2.0.0 // indirect
	github.com/gorilla/handlers v1.5.2 // indirect
	github.com/gorilla/mux v1.8.1 // indirect
	github.com/pkg/xattr v0.4.12 // indirect
	golang.org/x/oauth2 v0.36.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	google.golang.org/api v0.293.0 // indirect
)

replace (
	cloud.google.com/go/pubsub/v2 => ./stub/pubsub
	cloud.google.com/go/storage => ./stub/storage
	google.golang.org/api => ./stub/api
)
