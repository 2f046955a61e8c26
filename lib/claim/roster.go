package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// claimed is a claim with the revision that fences it.
type claimed struct {
	proto.Claim
	revision uint64
}

// roster is what the buckets say of one group: who is there and who holds what.
type roster struct {
	group   string
	log     *slog.Logger
	changed chan struct{} // of capacity 1: something may be different

	mu      sync.Mutex
	workers map[string]proto.Worker
	claims  map[string]claimed // by key without the group
}

// watchRoster reads the group as it stands, and follows it until ctx ends. failed is told when that is no longer possible.
func watchRoster(ctx context.Context, b *bus.Bus, group string, log *slog.Logger, failed func(error)) (*roster, error) {
	r := &roster{group: group, log: log, changed: make(chan struct{}, 1), workers: map[string]proto.Worker{}, claims: map[string]claimed{}}
	for bucket, hear := range map[string]func(string, jetstream.KeyValueEntry){
		proto.BucketWorkers: r.hearWorker,
		proto.BucketClaims:  r.hearClaim,
	} {
		kv, err := b.Bucket(ctx, bucket)
		if err != nil {
			return nil, err
		}
		watcher, err := kv.Watch(ctx, proto.ClaimKey(group, ">"))
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", bucket, err)
		}
		read := make(chan struct{})
		go func() {
			defer watcher.Stop()
			if err := r.follow(ctx, watcher, read, hear); err != nil {
				failed(fmt.Errorf("watch %s: %w", bucket, err))
			}
		}()
		select {
		case <-read:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return r, nil
}

func (r *roster) follow(ctx context.Context, w jetstream.KeyWatcher, read chan<- struct{}, hear func(string, jetstream.KeyValueEntry)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, open := <-w.Updates():
			switch {
			case !open && ctx.Err() != nil:
				return nil
			case !open:
				return errors.New("the watch ended")
			case entry == nil:
				close(read)
				continue
			}
			_, name, err := proto.ParseClaimKey(entry.Key())
			if err != nil {
				r.log.Error("a key cannot be read", "key", entry.Key(), "error", err)
				continue
			}
			hear(name, entry)
			select {
			case r.changed <- struct{}{}:
			default:
			}
		}
	}
}

func (r *roster) hearWorker(name string, e jetstream.KeyValueEntry) {
	var w proto.Worker
	put := e.Operation() == jetstream.KeyValuePut
	if put {
		if err := json.Unmarshal(e.Value(), &w); err != nil {
			r.log.Error("a worker's record cannot be read", "key", e.Key(), "error", err)
			put = false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if put {
		r.workers[name] = w
	} else {
		delete(r.workers, name)
	}
}

func (r *roster) hearClaim(name string, e jetstream.KeyValueEntry) {
	c := claimed{revision: e.Revision()}
	put := e.Operation() == jetstream.KeyValuePut
	if put {
		if err := json.Unmarshal(e.Value(), &c.Claim); err != nil {
			r.log.Error("a claim cannot be read", "key", e.Key(), "error", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if put {
		r.claims[name] = c
	} else {
		delete(r.claims, name)
	}
}

// snapshot copies what is known.
func (r *roster) snapshot() (map[string]proto.Worker, map[string]claimed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.workers), maps.Clone(r.claims)
}

// Directory knows who holds which key of a group, for those who must reach the holder.
type Directory struct {
	roster *roster
	failed chan error
}

// Watch reads who holds what, and follows it until ctx ends.
func Watch(ctx context.Context, b *bus.Bus, group string, log *slog.Logger) (*Directory, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &Directory{failed: make(chan error, 2)}
	var err error
	if d.roster, err = watchRoster(ctx, b, group, log, func(err error) { d.failed <- err }); err != nil {
		return nil, err
	}
	return d, nil
}

// Failed gives an error when who holds what can no longer be followed.
func (d *Directory) Failed() <-chan error { return d.failed }

// Holder is the live worker that holds a key; false: nobody does at this moment.
func (d *Directory) Holder(key string) (proto.Worker, bool) {
	d.roster.mu.Lock()
	defer d.roster.mu.Unlock()
	c, ok := d.roster.claims[key]
	w, alive := d.roster.workers[c.Worker]
	return w, ok && alive && w.Incarnation == c.Incarnation
}

// Workers are the live workers of the group, by name.
func (d *Directory) Workers() map[string]proto.Worker {
	workers, _ := d.roster.snapshot()
	return workers
}
