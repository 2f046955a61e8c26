package claim

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"

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

// openRoster reads both buckets as they stand, unless ctx ends before, and follows them until
// lasting ends.
func openRoster(ctx, lasting context.Context, b *bus.Bus, group string, log *slog.Logger) (*roster, error) {
	r := &roster{group: group, log: log, changed: make(chan struct{}, 1), workers: map[string]proto.Worker{}, claims: map[string]claimed{}}
	for bucket, hear := range map[string]func(string, bus.Message){
		proto.BucketWorkers: r.hearWorker,
		proto.BucketClaims:  r.hearClaim,
	} {
		prefix := proto.KVSubject(bucket, "")
		what := bus.Reading{Stream: proto.KVStream(bucket), Filters: []string{prefix + proto.ClaimKey(group, ">")}}
		f := bus.NewFollower(b.JS, what, log, func(messages []bus.Message) error {
			for _, m := range messages {
				r.hear(m, m.Subject[len(prefix):], hear)
			}
			return nil
		})
		go func() {
			if err := f.Run(lasting); err != nil {
				log.Error("a bucket of claims cannot be followed", "bucket", bucket, "error", err)
			}
		}()
		select {
		case <-f.Ready():
		case <-ctx.Done():
			return nil, fmt.Errorf("read bucket %s: %w", bucket, ctx.Err())
		}
	}
	return r, nil
}

func (r *roster) hear(m bus.Message, key string, hear func(string, bus.Message)) {
	_, name, err := proto.ParseClaimKey(key)
	if err != nil {
		r.log.Error("a key cannot be read", "key", key, "error", err)
		return
	}
	hear(name, m)
	tell(r.changed)
}

// tell sends on a channel of capacity 1, unless that was done already.
func tell(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

func (r *roster) hearWorker(name string, m bus.Message) {
	var w proto.Worker
	put := !m.Deletes()
	if put {
		if err := json.Unmarshal(m.Data, &w); err != nil {
			r.log.Error("a worker's record cannot be read", "worker", name, "error", err)
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

func (r *roster) hearClaim(name string, m bus.Message) {
	c := claimed{revision: m.Seq}
	put := !m.Deletes()
	if put {
		if err := json.Unmarshal(m.Data, &c.Claim); err != nil {
			r.log.Error("a claim cannot be read", "key", name, "error", err)
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

// worker returns a live worker by its name.
func (r *roster) worker(name string) (proto.Worker, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, live := r.workers[name]
	return w, live
}

// holder is the live worker that holds a key.
func (r *roster) holder(key string) (proto.Worker, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.claims[key]
	w, alive := r.workers[c.Worker]
	return w, ok && alive && w.Incarnation == c.Incarnation
}

// Directory knows who holds which key of a group, for those who must reach the holder.
type Directory struct {
	roster *roster
	stop   context.CancelFunc
}

// Watch reads who holds what, and follows it until Close: the end of ctx ends the reading only.
func Watch(ctx context.Context, b *bus.Bus, group string, log *slog.Logger) (*Directory, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	r, err := openRoster(ctx, lasting, b, group, log)
	if err != nil {
		stop()
		return nil, err
	}
	return &Directory{r, stop}, nil
}

// Close ends the following. From then on the directory tells what it knew last.
func (d *Directory) Close() { d.stop() }

// Holder is the live worker that holds a key; false: none does at this moment.
func (d *Directory) Holder(key string) (proto.Worker, bool) { return d.roster.holder(key) }

// Lives reports whether a worker is live and was not started again since.
func (d *Directory) Lives(worker proto.Worker) bool {
	w, live := d.roster.worker(worker.Name)
	return live && w.Incarnation == worker.Incarnation
}

// Workers are the live workers of the group, by name.
func (d *Directory) Workers() map[string]proto.Worker {
	workers, _ := d.roster.snapshot()
	return workers
}
