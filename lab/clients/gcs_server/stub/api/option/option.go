package option

import (
	"net/http"

	"golang.org/x/oauth2/google"
)

type ClientOption struct{}

func WithHTTPClient(*http.Client) ClientOption        { return ClientOption{} }
func WithCredentials(*google.Credentials) ClientOption { return ClientOption{} }
