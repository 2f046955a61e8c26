package purgatory

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// settlers is how many identifiers are settled at once; git processes have a bound of their own.
const settlers = 4

// dirty is the set of identifiers that should be settled: each once, however often it is added before its turn.
type dirty struct {
	mu    sync.Mutex
	order []string
	in    map[string]bool
	later map[string]time.Time
	wake  chan struct{}
}

func newDirty() *dirty {
	return &dirty{in: map[string]bool{}, later: map[string]time.Time{}, wake: make(chan struct{}, 1)}
}

func (d *dirty) add(identifier string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.in[identifier] {
		return
	}
	d.in[identifier] = true
	d.order = append(d.order, identifier)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// addAt adds an identifier when a time has come, the earliest if there are several.
func (d *dirty) addAt(identifier string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if before, is := d.later[identifier]; !is || at.Before(before) {
		d.later[identifier] = at
	}
}

// ripen adds those whose time has come.
func (d *dirty) ripen(now time.Time) {
	d.mu.Lock()
	var ripe []string
	for identifier, at := range d.later {
		if !now.Before(at) {
			ripe = append(ripe, identifier)
			delete(d.later, identifier)
		}
	}
	d.mu.Unlock()
	for _, identifier := range ripe {
		d.add(identifier)
	}
}

// next takes an identifier out, waiting for one until ctx ends.
func (d *dirty) next(ctx context.Context) (string, bool) {
	for {
		d.mu.Lock()
		if len(d.order) > 0 {
			identifier := d.order[0]
			d.order = d.order[1:]
			delete(d.in, identifier)
			more := len(d.order) > 0
			d.mu.Unlock()
			if more {
				select {
				case d.wake <- struct{}{}:
				default:
				}
			}
			return identifier, true
		}
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return "", false
		case <-d.wake:
		}
	}
}

// settleDirty settles what becomes dirty until ctx ends.
func (w *worker) settleDirty(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range settlers {
		group.Go(func() error {
			for {
				identifier, ok := w.due.next(ctx)
				if !ok {
					return nil
				}
				if _, err := w.Look(ctx, identifier); err != nil && ctx.Err() == nil {
					w.log.Error("what waits for git data could not be settled", "identifier", identifier, "error", err)
					w.due.addAt(identifier, time.Now().Add(w.node.Settings.HuntBackoffBase))
				}
			}
		})
	}
	return group.Wait()
}
