// Package report is what the pod of the outside world tells whoever runs `make k8s-test`.
package report

import (
	"time"

	"tendril.dev/test/k8s/load"
	"tendril.dev/test/outside"
)

// Task is how a task stands.
type Task struct {
	Lines []string `json:"lines"` // what it has said since it was last asked
	Next  int      `json:"next"`  // number of the next line
	Done  bool     `json:"done"`
	Error string   `json:"error,omitempty"` // why it failed
}

// Status is how the world stands.
type Status struct {
	Now       time.Time             `json:"now"` // on the clock of the spans
	Published int                   `json:"published"`
	Clients   map[string]load.Tally `json:"clients"` // by what they do
	Spans     []outside.Span        `json:"spans"`   // who was connected to which relay
	Relays    []string              `json:"relays"`  // all relays, by their URLs
}
