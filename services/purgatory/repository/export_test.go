package repository

import (
	"context"

	"tendril.dev/services/purgatory/slots"
)

// Fail makes steps that must be whole if a process is killed in the middle of them go wrong before
// fault says nil.
func (s *Store) Fail(fault func(step string) error) { s.fault = fault }

// ParseEnded is parseEnded.
var ParseEnded = parseEnded

// CreateRefs creates references without git, if that can be done.
func (r *Repo) CreateRefs(names map[string]string) (done bool, err error) {
	var changes []refChange
	for name, id := range names {
		changes = append(changes, refChange{name: name, to: id})
	}
	return r.create(changes)
}

// HoldScans takes all turns at looking through packs that the worker's own work can have.
func (s *Store) HoldScans(ctx context.Context) {
	for {
		taken, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := s.scans.Acquire(taken, slots.Work, "", 1); err != nil {
			return
		}
	}
}
