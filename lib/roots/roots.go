// Package roots reads the lists of repositories' root events that targets name
// ([proto.RepoChange.RootsAt]) from GRASP_TARGETS.
package roots

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"
	"unsafe"
	"weak"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// Reader reads lists, each once for all of a process who have it at the same time. It is safe for
// concurrent use.
type Reader struct {
	js      jetstream.JetStream
	reading singleflight.Group

	mu    sync.Mutex
	known map[version]list
	sweep int // when known has so many, those that nobody has any more are let go of
}

// version is a list as it was after a message.
type version struct {
	ref string
	at  uint64
}

// list is one that may have gone: nobody needs it any more.
type list struct {
	first weak.Pointer[target.ID]
	ids   int
	ends  []target.ID // keeps a list that is shorter than what a weak pointer is worth
}

// fewestWeak is how many ids a list has that is let go of.
const fewestWeak = 32

// NewReader returns a reader that knows no list yet.
func NewReader(js jetstream.JetStream) *Reader {
	return &Reader{js: js, known: map[version]list{}, sweep: 64}
}

// At returns a repository's list as it was after a message, sorted. whole is false if messages that
// led there have been replaced since; the list is of no use then. The list is shared and must not
// be changed.
func (r *Reader) At(ctx context.Context, ref string, at uint64) (ids []target.ID, whole bool, err error) {
	if ids, ok := r.have(ref, at); ok {
		return ids, true, nil
	}
	read := r.reading.DoChan(ref+" "+strconv.FormatUint(at, 10), func() (any, error) {
		// Others may wait for it too, however long the first one does.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		ids, whole, err := target.List(ctx, at, func(at uint64) ([]target.ID, bool) { return r.have(ref, at) }, r.message(ref))
		if err != nil {
			return nil, fmt.Errorf("read root events of %s: %w", ref, err)
		}
		if !whole {
			return nil, nil
		}
		return r.Keep(ref, at, ids), nil
	})
	select {
	case res := <-read:
		ids, whole = res.Val.([]target.ID)
		return ids, whole, res.Err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// readTimeout bounds the reading of one list.
const readTimeout = 5 * time.Minute

// Newest returns a repository's list as it is now; none if there is no such list. settled is false
// while it is being written, and the list is not whole.
func (r *Reader) Newest(ctx context.Context, ref string) (ids []target.ID, settled bool, err error) {
	subject, err := proto.RootsSubject(ref)
	if err != nil {
		return nil, true, nil // nobody can have written one
	}
	m, found, err := bus.Last(ctx, r.js, proto.StreamTargets, subject)
	if err != nil || !found {
		return nil, err == nil, err
	}
	var c proto.RootsChange
	if err := json.Unmarshal(m.Data, &c); err != nil {
		return nil, true, fmt.Errorf("read root events of %s: message %d: %w", ref, m.Seq, err)
	}
	if c.More {
		return nil, false, nil
	}
	ids, whole, err := r.At(ctx, ref, m.Seq)
	return ids, whole || c.Gone, err
}

// message reads single messages of a repository's list. One that cannot be read changes nothing.
func (r *Reader) message(ref string) func(ctx context.Context, at uint64) (proto.RootsChange, bool, error) {
	return func(ctx context.Context, at uint64) (c proto.RootsChange, found bool, err error) {
		m, found, err := bus.Get(ctx, r.js, proto.StreamTargets, at)
		if err != nil || !found {
			return c, false, err
		}
		if err := json.Unmarshal(m.Data, &c); err != nil || c.Ref != ref {
			return c, false, nil
		}
		return c, true, nil
	}
}

// have returns a list that somebody has.
func (r *Reader) have(ref string, at uint64) ([]target.ID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.known[version{ref, at}]
	if !ok {
		return nil, false
	}
	return l.value()
}

// Keep notes what a list is after a message, for as long as somebody has it, and returns the
// list to have. ids must not be changed from then on.
func (r *Reader) Keep(ref string, at uint64, ids []target.ID) []target.ID {
	ids = target.Shared(ids)
	l := list{ends: ids}
	if len(ids) >= fewestWeak {
		l = list{first: weak.Make(&ids[0]), ids: len(ids)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[version{ref, at}] = l
	if len(r.known) >= r.sweep {
		for v, l := range r.known {
			if _, ok := l.value(); !ok || l.ids == 0 {
				delete(r.known, v)
			}
		}
		r.sweep = 2*len(r.known) + 64
	}
	return ids
}

// value is the list if somebody has it still.
func (l list) value() ([]target.ID, bool) {
	if l.ids == 0 {
		return l.ends, true
	}
	first := l.first.Value()
	if first == nil {
		return nil, false
	}
	return unsafe.Slice(first, l.ids), true
}
