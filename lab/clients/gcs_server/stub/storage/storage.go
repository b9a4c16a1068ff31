// Package storage has what fake-gcs-server's own server takes from Google's client. The client
// itself, which the lab does not use, takes a minute of two cores to build.
package storage

import (
	"context"
	"errors"
	"time"

	"google.golang.org/api/option"
)

type (
	ACLEntity string
	ACLRole   string
	Client    struct{}
)

const (
	AllUsers              ACLEntity = "allUsers"
	AllAuthenticatedUsers ACLEntity = "allAuthenticatedUsers"
	RoleOwner             ACLRole   = "OWNER"
	RoleReader            ACLRole   = "READER"
	RoleWriter            ACLRole   = "WRITER"
)

type ProjectTeam struct {
	ProjectNumber string
	Team          string
}

type ACLRule struct {
	Entity      ACLEntity
	EntityID    string
	Role        ACLRole
	Domain      string
	Email       string
	ProjectTeam *ProjectTeam
}

type ObjectRetention struct {
	Mode        string
	RetainUntil time.Time
}

type Projection int

const (
	ProjectionDefault Projection = iota
	ProjectionFull
	ProjectionNoACL
)

func (p Projection) String() string {
	if p == ProjectionFull {
		return "full"
	}
	if p == ProjectionNoACL {
		return "noAcl"
	}
	return ""
}

func NewClient(context.Context, ...option.ClientOption) (*Client, error) {
	return nil, errors.New("this program is built without a client")
}
