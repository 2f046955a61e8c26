package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

var (
	// ErrNothing is a NATS server that no Tendril uses.
	ErrNothing = errors.New("there are no streams of Tendril")
	// ErrReplaced is a bucket that was made anew since it was opened: [Open] must be called again.
	ErrReplaced = errors.New("NATS has another bucket of this name now")
)

// Reader follows the buckets of a system, so that a report costs little.
type Reader struct {
	bus     *bus.Bus
	stop    context.CancelFunc
	opened  time.Time
	created map[string]time.Time // when the streams of the buckets were made

	mu      sync.Mutex
	states  map[string]proto.RelayState // by encoded relay
	claims  claims
	workers map[string]map[string]proto.Worker // by group and name
	held    map[string]heldEvent               // by key
	told    map[string]told                    // by process
}

// told is what a process has told last, and when.
type told struct {
	proto.Progress
	at time.Time
}

const (
	// tellEvery is how often processes tell how far they have read. One that has not for toldFor has
	// ended.
	tellEvery = time.Second
	toldFor   = 4 * tellEvery
	// mostTold bounds the processes that are shown.
	mostTold = 1000
)

// Open reads the buckets, and follows them until Close. ctx bounds the reading.
func Open(ctx context.Context, b *bus.Bus) (*Reader, error) {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &Reader{
		bus: b, stop: stop, created: map[string]time.Time{},
		states: map[string]proto.RelayState{}, claims: claims{},
		workers: map[string]map[string]proto.Worker{}, held: map[string]heldEvent{},
		told: map[string]told{}, opened: time.Now(),
	}
	sub, err := b.Conn.Subscribe(proto.SubjectProgress, r.hearProgress)
	if err != nil {
		return nil, fmt.Errorf("hear how far processes have read: %w", err)
	}
	context.AfterFunc(following, func() { _ = sub.Unsubscribe() })
	for bucket, hear := range map[string]func(string, []byte) error{
		proto.BucketRelays: r.hearRelay, proto.BucketClaims: r.hearClaim,
		proto.BucketWorkers: r.hearWorker, proto.BucketHeld: r.hearHeld,
	} {
		if err := r.follow(ctx, following, bucket, hear); err != nil {
			stop()
			return nil, err
		}
	}
	return r, nil
}

// Close ends the following.
func (r *Reader) Close() { r.stop() }

// follow reads a bucket to its end, and then goes on hearing of its changes until following ends.
// hear gets every value; nil says that the key is gone.
func (r *Reader) follow(ctx, following context.Context, bucket string, hear func(key string, value []byte) error) error {
	_, info, err := r.stream(ctx, proto.KVStream(bucket))
	if err != nil {
		return err
	}
	r.created[bucket] = info.Created
	kv, err := r.bus.JS.KeyValue(ctx, bucket)
	if err != nil {
		return fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	watcher, err := kv.WatchAll(following)
	if err != nil {
		return fmt.Errorf("read bucket %s: %w", bucket, err)
	}
	read := make(chan struct{})
	go func() {
		for entry := range watcher.Updates() {
			if entry == nil { // this was all that was there
				close(read)
				continue
			}
			r.hear(entry, hear)
		}
	}()
	select {
	case <-read:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read bucket %s: %w", bucket, ctx.Err())
	}
}

func (r *Reader) hear(entry jetstream.KeyValueEntry, hear func(key string, value []byte) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value := entry.Value()
	if entry.Operation() != jetstream.KeyValuePut {
		value = nil
	}
	// An entry that is no entry of ours is left out: who looks cannot mend it.
	_ = hear(entry.Key(), value)
}

func (r *Reader) hearProgress(m *nats.Msg) {
	var p proto.Progress
	if json.Unmarshal(m.Data, &p) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.told[p.Process]; known || len(r.told) < mostTold {
		r.told[p.Process] = told{p, time.Now()}
	}
}

// reads looks how far processes are behind what they read. Each has told since the reader was
// opened.
func (r *Reader) reads(ctx context.Context, report *Report) error {
	select {
	case <-time.After(time.Until(r.opened.Add(tellEvery + tellEvery/5))):
	case <-ctx.Done():
		return ctx.Err()
	}
	report.Reads = []Read{}
	r.mu.Lock()
	for process, t := range r.told {
		if time.Since(t.at) > toldFor {
			delete(r.told, process)
			continue
		}
		for _, read := range t.Read {
			report.Reads = append(report.Reads, Read{Process: process, Name: read.Name, Stream: read.Stream, Seq: read.Seq})
		}
	}
	r.mu.Unlock()
	slices.SortFunc(report.Reads, func(a, b Read) int { return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Name, b.Name)) })
	ends := map[string]uint64{}
	for i := range report.Reads {
		read := &report.Reads[i]
		if _, asked := ends[read.Stream]; !asked {
			ends[read.Stream], _ = bus.LastSeq(ctx, r.bus.JS, read.Stream) // of no stream it is 0
		}
		read.LastSeq = ends[read.Stream]
	}
	return ctx.Err()
}

func (r *Reader) hearRelay(key string, value []byte) error {
	return put(r.states, key, value)
}

func (r *Reader) hearClaim(key string, value []byte) error { return putInGroup(r.claims, key, value) }

func (r *Reader) hearWorker(key string, value []byte) error { return putInGroup(r.workers, key, value) }

func (r *Reader) hearHeld(key string, value []byte) error {
	if value == nil {
		delete(r.held, key)
		return nil
	}
	named, err := proto.ParseHeldKey(key)
	if err != nil {
		return err // the writer's mark
	}
	var h struct { // of [proto.Held]; the event itself is not needed
		Phase     proto.Phase `json:"phase"`
		HeldAt    time.Time   `json:"held_at"`
		ExpiresAt time.Time   `json:"expires_at"`
	}
	if err := json.Unmarshal(value, &h); err != nil {
		return err
	}
	r.held[key] = heldEvent{identifier: named.Identifier, kind: named.Kind, phase: h.Phase, at: h.HeldAt, until: h.ExpiresAt}
	return nil
}

func putInGroup[T any](groups map[string]map[string]T, key string, value []byte) error {
	group, name, err := proto.ParseClaimKey(key)
	if err != nil {
		return err
	}
	if groups[group] == nil {
		groups[group] = map[string]T{}
	}
	return put(groups[group], name, value)
}

func put[T any](all map[string]T, key string, value []byte) error {
	if value == nil {
		delete(all, key)
		return nil
	}
	var v T
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	all[key] = v
	return nil
}

// Report looks at the streams and puts together what is known now.
func (r *Reader) Report(ctx context.Context) (Report, error) {
	report := Report{
		At: time.Now().UTC(),
		Server: Server{
			URL: bus.Redacted(r.bus.Conn.ConnectedUrl()), Version: r.bus.Conn.ConnectedServerVersion(),
		},
	}
	for _, part := range []func(context.Context, *Report) error{r.sameBuckets, r.log, r.lanes, r.reads} {
		if err := part(ctx, &report); err != nil {
			return Report{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	report.Relays = relays(r.states, r.claims, r.workers)
	report.Held, report.Shards = purgatory(r.held, r.claims, r.workers)
	return report, nil
}

// stream looks at a stream as it is now.
func (r *Reader) stream(ctx context.Context, name string) (jetstream.Stream, *jetstream.StreamInfo, error) {
	stream, err := r.bus.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, ErrNothing
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return stream, stream.CachedInfo(), nil
}

func (r *Reader) sameBuckets(ctx context.Context, _ *Report) error {
	for bucket, created := range r.created {
		_, info, err := r.stream(ctx, proto.KVStream(bucket))
		if err != nil {
			return err
		}
		if !info.Created.Equal(created) {
			return fmt.Errorf("bucket %s: %w", bucket, ErrReplaced)
		}
	}
	return nil
}

func (r *Reader) log(ctx context.Context, report *Report) error {
	stream, info, err := r.stream(ctx, proto.StreamEvents)
	if err != nil {
		return err
	}
	report.Log = Log{Messages: info.State.Msgs, LastSeq: info.State.LastSeq, Bytes: info.State.Bytes}
	switch mark, err := stream.GetLastMsgForSubject(ctx, proto.SubjectEventsMark); {
	case errors.Is(err, jetstream.ErrMsgNotFound):
	case err != nil:
		return fmt.Errorf("read the writer's mark: %w", err)
	default:
		var m proto.WriterMark
		if json.Unmarshal(mark.Data, &m) == nil {
			report.Log.Writer, report.Log.WriterSince = m.Writer, m.At
		}
	}
	_, info, err = r.stream(ctx, proto.StreamRejected)
	if err != nil {
		return err
	}
	report.Log.Rejected = info.State.Msgs
	return nil
}

func (r *Reader) lanes(ctx context.Context, report *Report) error {
	for _, lane := range []struct{ name, stream, consumer string }{
		{"user", proto.StreamUser, proto.ConsumerUser},
		{"release", proto.StreamRelease, proto.ConsumerRelease},
		{"live", proto.StreamLive, proto.ConsumerLive},
		{"sync", proto.StreamSync, proto.ConsumerSync},
	} {
		stream, info, err := r.stream(ctx, lane.stream)
		if err != nil {
			return err
		}
		consumer, err := stream.Consumer(ctx, lane.consumer)
		if err != nil {
			return fmt.Errorf("look at consumer %s: %w", lane.consumer, err)
		}
		report.Lanes = append(report.Lanes, Lane{
			Name: lane.name, Queued: info.State.Msgs, Deciding: consumer.CachedInfo().NumAckPending,
			Bytes: info.State.Bytes, MaxBytes: info.Config.MaxBytes,
		})
	}
	return nil
}
