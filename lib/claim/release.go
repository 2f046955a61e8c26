package claim

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// markerKept is how long the bucket says that a claim was let go: long enough for every watch
// to hear of it. Relays come and go, and without an end each would leave a message for good.
const markerKept = time.Hour

// alsoEnded are a job that has ended and those that have too by now.
func (w *work) alsoEnded(first *job) []*job {
	jobs := []*job{first}
	for len(jobs) < takeAtOnce {
		select {
		case j := <-w.ended:
			jobs = append(jobs, j)
		default:
			return jobs
		}
	}
	return jobs
}

// release lets claims go whose work has ended, side by side.
func (w *work) release(ctx context.Context, jobs []*job) {
	var releasing sync.WaitGroup
	for _, j := range jobs {
		w.forget(j)
		releasing.Go(func() {
			if err := w.letGo(ctx, j.key, j.revision); err != nil && ctx.Err() == nil {
				w.o.Log.Warn("a claim could not be let go; it is taken up again, or expires with this worker", "key", j.key, "error", err)
			}
		})
	}
	releasing.Wait()
}

// letGo makes a claim free. Where another holds it meanwhile, the revision keeps his.
func (w *work) letGo(ctx context.Context, key string, revision uint64) error {
	cas, cancel := context.WithTimeout(ctx, casTimeout)
	defer cancel()
	err := w.claims.Purge(cas, proto.ClaimKey(w.o.Group, key), jetstream.LastRevision(revision), jetstream.PurgeTTL(markerKept))
	if bus.IsConflict(err) {
		return nil
	}
	return err
}

// noteDead keeps since when claims have been there that nobody needs. A claim on a relay that went
// away while its worker was dead would stay for good.
func (w *work) noteDead(s situation, now time.Time) {
	for key := range w.deadSince {
		if _, there := s.claims[key]; !there || !s.abandoned(key) {
			delete(w.deadSince, key)
		}
	}
	if !w.listed {
		return // who knows what is wanted
	}
	for key := range s.claims {
		if _, noted := w.deadSince[key]; !noted && s.abandoned(key) {
			w.deadSince[key] = now
		}
	}
}

// clear removes claims, as long as nobody has written to them. What cannot be removed is tried
// again with the next decision.
func (w *work) clear(ctx context.Context, keys []string, claims map[string]claimed) {
	for _, key := range keys[:min(len(keys), takeAtOnce)] {
		if err := w.letGo(ctx, key, claims[key].revision); err != nil {
			w.o.Log.Debug("the claim of a dead worker could not be removed yet", "key", key, "error", err)
			return
		}
		delete(w.deadSince, key) // until the bucket tells
	}
}
