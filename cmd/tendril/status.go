package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/term"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/session"
)

const (
	// againAfter is the pause between two reports of `tendril status --watch`. A report takes 1.2 s.
	againAfter = 800 * time.Millisecond
	// tellEvery is how often processes tell how they stand, with some room.
	tellEvery = time.Second + 200*time.Millisecond
)

// shows is `tendril status`.
type shows struct {
	Watch bool `help:"Stay, and print again every two seconds; with --json one object a line."`
	asks  `embed:""`
}

// Run implements the command.
func (s *shows) Run() error {
	return s.do("status", "", 0, func(ctx context.Context, b *bus.Bus) error {
		for {
			err := s.look(ctx, b)
			if !s.Watch {
				return err
			}
			if err != nil && ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "tendril: %v\n", err)
			}
			select {
			case <-time.After(againAfter):
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// look prints a report.
func (s *shows) look(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, s.Wait)
	defer cancel()
	r, err := look(ctx, b)
	switch {
	case err != nil:
		return s.unanswered(err)
	case s.JSON && s.Watch:
		return json.NewEncoder(os.Stdout).Encode(r)
	case s.Watch && term.IsTerminal(int(os.Stdout.Fd())):
		fmt.Print("\x1b[H\x1b[2J")
	}
	return s.print(os.Stdout, r, r.write)
}

// report is the state of a system as its bus tells it. Its JSON is for machines; names stay.
type report struct {
	At        time.Time         `json:"at"`
	URL       string            `json:"nats"`
	Version   string            `json:"nats_version"`
	Processes []proto.Progress  `json:"processes"`
	Ends      map[string]uint64 `json:"last_sequences"` // of the streams that processes read
	Bans      int               `json:"bans"`           // of operators; not those of settings
	Log       logState          `json:"log"`
	Held      heldState         `json:"held"`
	Lanes     []laneState       `json:"candidates"`
	Shards    []shardsOf        `json:"shards"`
	Relays    []relayRow        `json:"relays"`
}

// logState is the log of accepted events, and who writes it.
type logState struct {
	Messages    uint64    `json:"messages"` // events, and the writer's mark
	LastSeq     uint64    `json:"last_sequence"`
	Bytes       uint64    `json:"bytes"`
	Writer      string    `json:"writer,omitempty"`      // who began last to write; empty: none yet
	WriterSince time.Time `json:"writer_since,omitzero"` // by the writer's clock
	Rejected    uint64    `json:"rejected_ids"`          // how many rejected events are remembered
}

// heldState is the events in purgatory.
type heldState struct {
	Events  int            `json:"events"`
	Phases  map[string]int `json:"phases"` // waiting, silent, vouched
	Kinds   map[int]int    `json:"kinds"`
	Hunts   int            `json:"hunts"` // identifiers with events that wait
	Oldest  time.Time      `json:"oldest,omitzero"`
	Expires time.Time      `json:"next_expiry,omitzero"`
}

// laneState is one of the queues of candidates.
type laneState struct {
	Name     string `json:"lane"`
	Queued   uint64 `json:"queued"`   // packs of candidates, those with the writer included
	Deciding int    `json:"deciding"` // with the writer
	Bytes    uint64 `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"`
}

// shardsOf is what one worker holds of the shards of identifiers; without a name, what none does.
type shardsOf struct {
	Worker string `json:"worker,omitempty"`
	Shards int    `json:"shards"`
	Held   int    `json:"held"`  // events that wait for git data
	Hunts  int    `json:"hunts"` // identifiers whose git data is awaited or hunted
}

// relayRow is another relay that is synced from.
type relayRow struct {
	Name   string `json:"relay"`            // its identity: host, port, path
	State  string `json:"state"`            // of the connection
	Health string `json:"health"`           // healthy, degraded and so on
	Worker string `json:"worker,omitempty"` // who holds it; empty: none
	proto.RelayState
}

// look looks at a system. It takes as long as every process needs to tell how it stands.
func look(ctx context.Context, b *bus.Bus) (report, error) {
	progress, err := b.Conn.SubscribeSync(proto.SubjectProgress)
	if err != nil {
		return report{}, fmt.Errorf("hear how processes stand: %w", err)
	}
	defer progress.Unsubscribe()
	hearing, cancel := context.WithTimeout(ctx, tellEvery)
	defer cancel()
	r := report{At: time.Now().UTC(), URL: bus.Redacted(b.Conn.ConnectedUrl()), Version: b.Conn.ConnectedServerVersion(), Ends: map[string]uint64{}}
	for _, read := range []func(context.Context, *bus.Bus) error{r.readLog, r.readLanes, r.readBuckets} {
		if err := read(ctx, b); err != nil {
			return report{}, err
		}
	}
	told := map[string]proto.Progress{}
	for {
		m, err := progress.NextMsgWithContext(hearing)
		if err != nil {
			break // all have told, or the connection is lost
		}
		var p proto.Progress
		if json.Unmarshal(m.Data, &p) == nil {
			told[p.Process] = p
		}
	}
	r.Processes = []proto.Progress{}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		r.Processes = append(r.Processes, told[name])
		for _, read := range told[name].Read {
			if _, asked := r.Ends[read.Stream]; !asked {
				r.Ends[read.Stream], _ = bus.LastSeq(ctx, b.JS, read.Stream) // of no stream it is 0
			}
		}
	}
	return r, ctx.Err()
}

func (r *report) readLog(ctx context.Context, b *bus.Bus) error {
	_, log, err := find(ctx, b, proto.StreamEvents)
	if err != nil {
		return err
	}
	_, rejected, err := find(ctx, b, proto.StreamRejected)
	if err != nil {
		return err
	}
	r.Log = logState{Messages: log.State.Msgs, LastSeq: log.State.LastSeq, Bytes: log.State.Bytes, Rejected: rejected.State.Msgs}
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

func (r *report) readLanes(ctx context.Context, b *bus.Bus) error {
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
		r.Lanes = append(r.Lanes, laneState{lane.name, info.State.Msgs, consumer.CachedInfo().NumAckPending, info.State.Bytes, info.Config.MaxBytes})
	}
	return nil
}

// find looks at a stream as it is now.
func find(ctx context.Context, b *bus.Bus, name string) (jetstream.Stream, *jetstream.StreamInfo, error) {
	stream, err := b.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, errNoStreams(b)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return stream, stream.CachedInfo(), nil
}

func (r *report) readBuckets(ctx context.Context, b *bus.Bus) error {
	c := claims{}
	states, events := map[string]proto.RelayState{}, map[string]heldEvent{}
	err := errors.Join(bucket(ctx, b, proto.BucketClaims, &c.held), bucket(ctx, b, proto.BucketWorkers, &c.workers),
		bucket(ctx, b, proto.BucketRelays, &states), bucket(ctx, b, proto.BucketHeld, &events))
	if err == nil {
		r.Relays = relays(states, c)
		r.Held, r.Shards = sumHeld(events, c)
	}
	banned, failed := bans.Open(ctx, b.JS, config.Policy{}, slog.New(slog.DiscardHandler))
	if failed == nil {
		r.Bans = len(slices.Collect(banned.All()))
	}
	return errors.Join(err, failed)
}

// bucket reads the values of a bucket, by key, or of the keys that subjects with wildcards name. A
// value that cannot be read is left out.
func bucket[T any](ctx context.Context, b *bus.Bus, name string, all *map[string]T, keys ...string) error {
	*all = map[string]T{}
	reading := bus.Reading{Stream: proto.KVStream(name)}
	if _, _, err := find(ctx, b, reading.Stream); err != nil {
		return err
	}
	for _, key := range keys {
		reading.Filters = append(reading.Filters, proto.KVSubject(name, key))
	}
	err := bus.Read(ctx, b.JS, reading, func(m bus.Message) {
		key := strings.TrimPrefix(m.Subject, proto.KVSubject(name, ""))
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
	if _, works := c.workers[proto.ClaimKey(group, claim.Worker)]; !ok || !works {
		return ""
	}
	return claim.Worker
}

// relays returns every relay of which the bus knows something, by name.
func relays(states map[string]proto.RelayState, c claims) []relayRow {
	for key := range c.held {
		group, token, _ := proto.ParseClaimKey(key)
		if _, known := states[token]; !known && group == proto.GroupRelays && c.holder(group, token) != "" {
			states[token] = proto.RelayState{Connection: int(session.Disconnected), Health: int(health.Disconnected)}
		}
	}
	all := make([]relayRow, 0, len(states))
	for token, s := range states {
		name, err := proto.DecodeRelay(token)
		if err != nil {
			name = token
		}
		state := "unknown"
		if s.Connection >= int(session.Disconnected) && s.Connection <= int(session.Incomplete) {
			state = session.Connection(s.Connection).String()
		}
		all = append(all, relayRow{name, state, health.State(s.Health).String(), c.holder(proto.GroupRelays, token), s})
	}
	slices.SortFunc(all, func(a, b relayRow) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// heldEvent is a [proto.Held] without the event itself.
type heldEvent struct {
	Phase     proto.Phase `json:"phase"`
	HeldAt    time.Time   `json:"held_at"`
	ExpiresAt time.Time   `json:"expires_at"`
}

// sumHeld adds up what is held, in all and by worker. events are by key of the bucket.
func sumHeld(events map[string]heldEvent, c claims) (heldState, []shardsOf) {
	sum := heldState{Phases: map[string]int{}, Kinds: map[int]int{}}
	workers := map[string]*shardsOf{}
	var shards [proto.Shards]*shardsOf
	for i := range shards {
		worker := c.holder(proto.GroupShards, proto.ShardName(i))
		if workers[worker] == nil {
			workers[worker] = &shardsOf{Worker: worker}
		}
		workers[worker].Shards++
		shards[i] = workers[worker]
	}
	hunts := map[string]bool{}
	for key, h := range events {
		named, err := proto.ParseHeldKey(key)
		if err != nil {
			continue // the writer's mark
		}
		shard := shards[proto.ShardOf(named.Identifier)]
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
	all := []shardsOf{}
	for _, worker := range slices.SortedFunc(maps.Keys(workers), func(a, b string) int { return cmp.Compare(cmp.Or(a, "\xff"), cmp.Or(b, "\xff")) }) {
		all = append(all, *workers[worker])
	}
	return sum, all
}

// kindNames are the kinds that wait for git data.
var kindNames = map[int]string{
	nostr.KindAnnouncement: "announcements", nostr.KindState: "states",
	nostr.KindPR: "pull requests", nostr.KindPRUpdate: "updates of pull requests",
}

// write writes a report for people.
func (r report) write(w io.Writer) error {
	line := func(name, format string, values ...any) {
		fmt.Fprintf(w, "%-13s "+format+"\n", append([]any{name}, values...)...)
	}
	r.writeProcesses(line)
	line("NATS", "%s, version %s", printable(r.URL), printable(r.Version))
	most, writer := "", "no writer yet"
	for _, p := range r.Processes {
		if n := p.Counts["log_max_bytes"]; n > 0 {
			most = " of at most " + humanize.IBytes(uint64(n))
		}
	}
	if r.Log.Writer != "" {
		writer = fmt.Sprintf("writer %s, for %s", printable(r.Log.Writer), ago(r.At, r.Log.WriterSince))
	}
	line("log", "%d messages (%s%s), last sequence %d; %s", r.Log.Messages, humanize.IBytes(r.Log.Bytes), most, r.Log.LastSeq, writer)
	line("rejected", "%d ids remembered", r.Log.Rejected)
	line("held", "%s", r.Held.line(r.At))
	type read struct {
		process string
		proto.Reading
	}
	var reads []read
	for _, p := range r.Processes {
		for _, reading := range p.Read {
			reads = append(reads, read{p.Process, reading})
		}
	}
	return errors.Join(
		table(w, "\nLANE|QUEUED|WITH THE WRITER|BYTES|OF", len(r.Lanes), func(i int) []any {
			l := r.Lanes[i]
			return []any{l.Name, l.Queued, l.Deciding, humanize.IBytes(l.Bytes), humanize.IBytes(uint64(max(l.MaxBytes, 0)))}
		}),
		table(w, "\nPROCESS|KEEPS|OF|HAS READ|LAST|BEHIND", len(reads), func(i int) []any {
			l, end := reads[i], r.Ends[reads[i].Stream]
			return []any{printable(l.process), printable(l.Name), printable(l.Stream), l.Seq, end, max(end, l.Seq) - l.Seq}
		}),
		table(w, "\nSHARDS HELD BY|SHARDS|HELD EVENTS|HUNTS", len(r.Shards), func(i int) []any {
			s := r.Shards[i]
			return []any{orNone(s.Worker), s.Shards, s.Held, s.Hunts}
		}),
		table(w, "\nRELAY|STATE|HEALTH|WORKER|REPOSITORIES|ROOTS|OPEN|COMPLETE UNTIL|LAST ERROR", len(r.Relays), func(i int) []any {
			l := r.Relays[i]
			return []any{printable(l.Name), l.State, l.Health, orNone(l.Worker), l.Repos, l.Roots, l.Subscriptions, clock(l.CompleteUntil), l.trouble()}
		}))
}

// writeProcesses writes what the processes tell of themselves.
func (r report) writeProcesses(line func(name, format string, values ...any)) {
	said := map[string]bool{}
	once := func(name, text string) {
		if !said[name+text] {
			said[name+text] = true
			line(name, "%s", printable(text))
		}
	}
	for _, p := range r.Processes {
		once("domain", p.Domain)
		once("tendril", fmt.Sprintf("%s: version %s, up for %s", p.Process, p.Version, ago(r.At, p.Started)))
		for _, d := range p.Disks {
			once("disk", fmt.Sprintf("%s: %s free of %s", d.Folder, humanize.IBytes(uint64(d.Free)), humanize.IBytes(uint64(d.Bytes))))
		}
		for _, name := range slices.Sorted(maps.Keys(p.Troubles)) {
			once("trouble", p.Process+": "+name+": "+p.Troubles[name])
		}
	}
	line("repositories", "%d hosted, %d held, %d ended", r.sum("repositories_hosted"), r.sum("repositories_held"), r.sum("repositories_ended"))
	line("clients", "%d connections", r.sum("clients"))
	line("bans", "%d", r.Bans)
}

// sum adds up what processes count.
func (r report) sum(name string) (n int64) {
	for _, p := range r.Processes {
		n += p.Counts[name]
	}
	return n
}

// line is what is held, in one line.
func (h heldState) line(now time.Time) string {
	if h.Events == 0 {
		return "no events"
	}
	var parts []string
	for _, phase := range slices.Sorted(maps.Keys(h.Phases)) {
		parts = append(parts, fmt.Sprintf("%d %s", h.Phases[phase], printable(phase)))
	}
	for _, kind := range slices.Sorted(maps.Keys(h.Kinds)) {
		parts = append(parts, fmt.Sprintf("%d %s", h.Kinds[kind], cmp.Or(kindNames[kind], "of kind "+strconv.Itoa(kind))))
	}
	return fmt.Sprintf("%d events (%s), the oldest for %s; hunts for %d identifiers", h.Events, strings.Join(parts, ", "), ago(now, h.Oldest), h.Hunts)
}

// trouble is why a relay is not connected, cut short.
func (l relayRow) trouble() string {
	if l.Failures == 0 {
		return "-"
	}
	// The row names the relay, so its error need not.
	return fmt.Sprintf("%d × %s", l.Failures, clip(printable(strings.TrimPrefix(l.LastError, "open WebSocket to "+l.URL+": "))))
}

func orNone(worker string) string { return cmp.Or(printable(worker), "none") }
