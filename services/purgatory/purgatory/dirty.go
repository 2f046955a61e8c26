package purgatory

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// settlers is how many identifiers are settled at once; git processes have a bound of their own.
const settlers = 4

// dirty is the set of identifiers that should be settled: each once, however often it is added
// before its turn, and each by one at a time, so that a slow one does not keep others waiting.
type dirty struct {
	mu    sync.Mutex
	order []string
	in    map[string]bool
	busy  map[string]bool // being settled; true: added again meanwhile
	later map[string]time.Time
	wake  chan struct{}
}

func newDirty() *dirty {
	return &dirty{in: map[string]bool{}, busy: map[string]bool{}, later: map[string]time.Time{}, wake: make(chan struct{}, 1)}
}

func (d *dirty) add(identifier string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, busy := d.busy[identifier]; busy {
		d.busy[identifier] = true
		return
	}
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

// done ends the turn of an identifier.
func (d *dirty) done(identifier string) {
	d.mu.Lock()
	again := d.busy[identifier]
	delete(d.busy, identifier)
	d.mu.Unlock()
	if again {
		d.add(identifier)
	}
}

// next takes an identifier out, waiting for one until ctx ends. done must be called for it.
func (d *dirty) next(ctx context.Context) (string, bool) {
	for {
		d.mu.Lock()
		if len(d.order) > 0 {
			identifier := d.order[0]
			d.order = d.order[1:]
			delete(d.in, identifier)
			d.busy[identifier] = false
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
	group.Go(func() error {
		tick := time.NewTicker(w.node.Settings.HuntInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-tick.C:
				w.due.ripen(now)
			}
		}
	})
	for range settlers {
		group.Go(func() error {
			for {
				identifier, ok := w.due.next(ctx)
				if !ok {
					return nil
				}
				w.takeTurn(ctx, identifier)
				w.due.done(identifier)
			}
		})
	}
	return group.Wait()
}

func (w *worker) takeTurn(ctx context.Context, identifier string) {
	unlock, err := w.shards.Write(ctx, identifier)
	if err != nil {
		return // another's now, or we are stopping
	}
	defer unlock()
	d, err := w.settle(ctx, identifier)
	if err == nil {
		err = w.tidy(ctx, d)
	}
	if err != nil {
		w.unsettled(ctx, identifier, err)
	}
}

// unsettled sees to it that an identifier is settled later. While the bus is away that is no news
// of any one of them.
func (w *worker) unsettled(ctx context.Context, identifier string, err error) {
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelError
	if !w.node.Bus.Conn.IsConnected() {
		level = slog.LevelDebug
	}
	w.log.Log(ctx, level, "events that wait for git data could not be processed", "identifier", identifier, "error", err)
	w.due.addAt(identifier, time.Now().Add(w.node.Settings.HuntBackoffBase))
}
