// Package status is what an operator sees of a running system at a glance: its relays, shards, held
// events, queues, and how far its processes are behind. It only reads the bus.
package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

// Report is the state of a system as its bus tells it. Its JSON is for machines; names stay.
type Report struct {
	At     time.Time `json:"at"`
	Server Server    `json:"server"`
	Log    Log       `json:"log"`
	Relays []Relay   `json:"relays"`
	Shards []Shard   `json:"shards"` // of those with a worker or held events
	Held   Held      `json:"held"`
	Lanes  []Lane    `json:"candidates"`
	Reads  []Read    `json:"reads"`
}

// Read is how far a process has read a stream that it keeps something of.
type Read struct {
	Process string `json:"process"`
	Name    string `json:"projection"`
	Stream  string `json:"stream"`
	Seq     uint64 `json:"sequence"`
	LastSeq uint64 `json:"last_sequence"` // of the stream
}

// Server is the NATS server that was asked.
type Server struct {
	URL     string `json:"url"`
	Version string `json:"version"`
}

// Log is the log of accepted events, and who writes it.
type Log struct {
	Messages    uint64    `json:"messages"` // events, and the writer's mark
	LastSeq     uint64    `json:"last_sequence"`
	Bytes       uint64    `json:"bytes"`
	Writer      string    `json:"writer,omitempty"`      // who began last to write; empty: none yet
	WriterSince time.Time `json:"writer_since,omitzero"` // by the writer's clock
	Rejected    uint64    `json:"rejected_ids"`          // how many rejected events are remembered
}

// Relay is another relay that is synced from.
type Relay struct {
	Name          string    `json:"relay"` // its identity: host, port, path
	URL           string    `json:"url,omitempty"`
	State         string    `json:"state"`            // of the connection
	Health        string    `json:"health"`           // healthy, degraded and so on
	Worker        string    `json:"worker,omitempty"` // who holds it; empty: none
	Repositories  int       `json:"repositories_confirmed"`
	Roots         int       `json:"roots_confirmed"`
	Subscriptions int       `json:"subscriptions"`
	Failures      int       `json:"failures,omitempty"`
	LastError     string    `json:"last_error,omitempty"`
	NextAttempt   time.Time `json:"next_attempt,omitzero"`
	CompleteUntil time.Time `json:"complete_until,omitzero"`
}

// Shard is a 64th of the identifiers.
type Shard struct {
	Shard  string `json:"shard"`
	Worker string `json:"worker,omitempty"` // who holds it; empty: none
	Held   int    `json:"held"`             // events that wait for git data
	Hunts  int    `json:"hunts"`            // identifiers whose git data is awaited or hunted
}

// Held are the events in purgatory.
type Held struct {
	Events  int            `json:"events"`
	Phases  map[string]int `json:"phases"` // waiting, silent, vouched
	Kinds   map[int]int    `json:"kinds"`
	Hunts   int            `json:"hunts"` // identifiers with events that wait
	Oldest  time.Time      `json:"oldest,omitzero"`
	Expires time.Time      `json:"next_expiry,omitzero"`
}

// Lane is one of the queues of candidates.
type Lane struct {
	Name     string `json:"lane"`
	Queued   uint64 `json:"queued"`   // packs of candidates, those with the writer included
	Deciding int    `json:"deciding"` // with the writer
	Bytes    uint64 `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"`
}

// ErrNothing is a NATS server that no Tendril uses.
var ErrNothing = errors.New("there are no streams of Tendril")

// tellEvery is how often processes tell how far they have read, with some room.
const tellEvery = time.Second + 200*time.Millisecond

// Look looks at a system. It takes as long as every process needs to tell how far it has read.
func Look(ctx context.Context, b *bus.Bus) (Report, error) {
	progress, err := b.Conn.SubscribeSync(proto.SubjectProgress)
	if err != nil {
		return Report{}, fmt.Errorf("hear how far processes have read: %w", err)
	}
	defer progress.Unsubscribe()
	hearing, cancel := context.WithTimeout(ctx, tellEvery)
	defer cancel()
	r := Report{
		At:     time.Now().UTC(),
		Server: Server{URL: bus.Redacted(b.Conn.ConnectedUrl()), Version: b.Conn.ConnectedServerVersion()},
	}
	if err := errors.Join(r.readLog(ctx, b), r.readLanes(ctx, b), r.readBuckets(ctx, b)); err != nil {
		return Report{}, err
	}
	told := map[string][]proto.Reading{} // by process
	for {
		m, err := progress.NextMsgWithContext(hearing)
		if err != nil {
			break // all have told, or the connection is lost
		}
		var p proto.Progress
		if json.Unmarshal(m.Data, &p) == nil {
			told[p.Process] = p.Read
		}
	}
	r.setReads(ctx, b, told)
	return r, ctx.Err()
}

func (r *Report) readLog(ctx context.Context, b *bus.Bus) error {
	_, log, err := find(ctx, b, proto.StreamEvents)
	if err != nil {
		return err
	}
	_, rejected, err := find(ctx, b, proto.StreamRejected)
	if err != nil {
		return err
	}
	r.Log = Log{Messages: log.State.Msgs, LastSeq: log.State.LastSeq, Bytes: log.State.Bytes, Rejected: rejected.State.Msgs}
	m, found, err := bus.Last(ctx, b.JS, proto.StreamEvents, proto.SubjectEventsMark)
	if err != nil {
		return fmt.Errorf("read the writer's mark: %w", err)
	}
	var mark proto.WriterMark
	if found && json.Unmarshal(m.Data, &mark) == nil {
		r.Log.Writer, r.Log.WriterSince = mark.Writer, mark.At
	}
	return nil
}

func (r *Report) readLanes(ctx context.Context, b *bus.Bus) error {
	for _, lane := range []struct{ name, stream, consumer string }{
		{"user", proto.StreamUser, proto.ConsumerUser},
		{"release", proto.StreamRelease, proto.ConsumerRelease},
		{"live", proto.StreamLive, proto.ConsumerLive},
		{"sync", proto.StreamSync, proto.ConsumerSync},
	} {
		stream, info, err := find(ctx, b, lane.stream)
		if err != nil {
			return err
		}
		consumer, err := stream.Consumer(ctx, lane.consumer)
		if err != nil {
			return fmt.Errorf("look at consumer %s: %w", lane.consumer, err)
		}
		r.Lanes = append(r.Lanes, Lane{
			Name: lane.name, Queued: info.State.Msgs, Deciding: consumer.CachedInfo().NumAckPending,
			Bytes: info.State.Bytes, MaxBytes: info.Config.MaxBytes,
		})
	}
	return nil
}

// find looks at a stream as it is now.
func find(ctx context.Context, b *bus.Bus, name string) (jetstream.Stream, *jetstream.StreamInfo, error) {
	stream, err := b.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, ErrNothing
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return stream, stream.CachedInfo(), nil
}

// setReads says how far processes are behind what they read.
func (r *Report) setReads(ctx context.Context, b *bus.Bus, told map[string][]proto.Reading) {
	r.Reads = []Read{}
	ends := map[string]uint64{}
	for process, reads := range told {
		for _, read := range reads {
			if _, asked := ends[read.Stream]; !asked {
				ends[read.Stream], _ = bus.LastSeq(ctx, b.JS, read.Stream) // of no stream it is 0
			}
			r.Reads = append(r.Reads, Read{Process: process, Name: read.Name, Stream: read.Stream, Seq: read.Seq, LastSeq: ends[read.Stream]})
		}
	}
	slices.SortFunc(r.Reads, func(a, b Read) int { return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Name, b.Name)) })
}

func (r *Report) readBuckets(ctx context.Context, b *bus.Bus) error {
	var c claims
	var states map[string]proto.RelayState
	var events map[string]heldEvent
	err := errors.Join(bucket(ctx, b, proto.BucketClaims, &c.held), bucket(ctx, b, proto.BucketWorkers, &c.workers),
		bucket(ctx, b, proto.BucketRelays, &states), bucket(ctx, b, proto.BucketHeld, &events))
	if err != nil {
		return err
	}
	r.Relays = relays(states, c)
	r.Held, r.Shards = purgatory(events, c)
	return nil
}

// bucket reads the values of a bucket, by key. A value that cannot be read is left out.
func bucket[T any](ctx context.Context, b *bus.Bus, name string, all *map[string]T) error {
	*all = map[string]T{}
	stream := proto.KVStream(name)
	if _, _, err := find(ctx, b, stream); err != nil {
		return err
	}
	err := bus.Read(ctx, b.JS, bus.Reading{Stream: stream}, func(m bus.Message) {
		_, key, _ := strings.Cut(strings.TrimPrefix(m.Subject, "$KV."), ".")
		var value T
		if m.Deletes() {
			delete(*all, key)
		} else if json.Unmarshal(m.Data, &value) == nil {
			(*all)[key] = value
		}
	})
	if err != nil {
		return fmt.Errorf("read bucket %s: %w", name, err)
	}
	return nil
}

// claims are who holds what, and who is at work, by key.
type claims struct {
	held    map[string]proto.Claim
	workers map[string]proto.Worker
}

// holder is the worker at work that holds a name of a group; empty if there is none.
func (c claims) holder(group, name string) string {
	claim, ok := c.held[proto.ClaimKey(group, name)]
	if !ok || c.workers[proto.ClaimKey(group, claim.Worker)].Incarnation != claim.Incarnation {
		return ""
	}
	return claim.Worker
}

// relays returns every relay of which the bus knows something, by name.
func relays(states map[string]proto.RelayState, c claims) []Relay {
	for key := range c.held {
		group, token, _ := proto.ParseClaimKey(key)
		if _, known := states[token]; !known && group == proto.GroupRelays && c.holder(group, token) != "" {
			states[token] = proto.RelayState{Connection: int(session.Disconnected), Health: int(health.Disconnected)}
		}
	}
	all := make([]Relay, 0, len(states))
	for token, s := range states {
		name, err := proto.DecodeRelay(token)
		if err != nil {
			name = token
		}
		state := "unknown"
		if s.Connection >= int(session.Disconnected) && s.Connection <= int(session.Incomplete) {
			state = session.Connection(s.Connection).String()
		}
		all = append(all, Relay{
			Name: name, URL: s.URL, State: state, Health: health.State(s.Health).String(), Worker: c.holder(proto.GroupRelays, token),
			Repositories: s.Repos, Roots: s.Roots, Subscriptions: s.Subscriptions,
			Failures: s.Failures, LastError: s.LastError, NextAttempt: s.NextAttempt, CompleteUntil: s.CompleteUntil,
		})
	}
	slices.SortFunc(all, func(a, b Relay) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// heldEvent is a [proto.Held] without the event itself.
type heldEvent struct {
	Phase     proto.Phase `json:"phase"`
	HeldAt    time.Time   `json:"held_at"`
	ExpiresAt time.Time   `json:"expires_at"`
}

// purgatory adds up what is held, in all and by shard. events are by key of the bucket.
func purgatory(events map[string]heldEvent, c claims) (Held, []Shard) {
	sum := Held{Phases: map[string]int{}, Kinds: map[int]int{}}
	var shards [proto.Shards]Shard
	for i := range shards {
		name := proto.ShardName(i)
		shards[i] = Shard{Shard: name, Worker: c.holder(proto.GroupShards, name)}
	}
	hunts := map[string]bool{}
	for key, h := range events {
		named, err := proto.ParseHeldKey(key)
		if err != nil {
			continue // the writer's mark
		}
		shard := &shards[proto.ShardOf(named.Identifier)]
		shard.Held++
		sum.Events++
		sum.Phases[string(h.Phase)]++
		sum.Kinds[named.Kind]++
		if sum.Oldest.IsZero() || h.HeldAt.Before(sum.Oldest) {
			sum.Oldest = h.HeldAt
		}
		if sum.Expires.IsZero() || h.ExpiresAt.Before(sum.Expires) {
			sum.Expires = h.ExpiresAt
		}
		// In the other phases an event is only kept.
		if h.Phase == proto.PhaseWaiting && !hunts[named.Identifier] {
			hunts[named.Identifier] = true
			shard.Hunts++
		}
	}
	sum.Hunts = len(hunts)
	return sum, slices.DeleteFunc(shards[:], func(s Shard) bool { return s.Worker == "" && s.Held == 0 })
}
