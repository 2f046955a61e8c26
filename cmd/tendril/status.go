package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
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

// statusCommand is `tendril status`.
type statusCommand struct {
	Watch    bool `help:"Stay, and print again every two seconds; with --json one object a line." xor:"watch"`
	Check    bool `help:"Print only what is degraded. Exit status 1 if something is." xor:"watch"`
	busFlags `embed:""`
}

// Run implements the command.
func (s *statusCommand) Run() error {
	return s.do(0, func(r *reader) error {
		for {
			ctx, cancel := context.WithTimeout(r.ctx, s.Wait)
			report, err := look(&reader{Bus: r.Bus, ctx: ctx})
			cancel()
			switch {
			case s.Watch && r.ctx.Err() != nil:
				return nil
			case !s.Watch && err != nil:
				return err
			case err != nil:
				fmt.Fprintf(os.Stderr, "tendril: %v\n", err)
			case s.Check:
				return s.check(report)
			case !s.Watch:
				return s.print(report, report.write)
			case s.JSON:
				json.NewEncoder(os.Stdout).Encode(report)
			default:
				if term.IsTerminal(int(os.Stdout.Fd())) {
					fmt.Print("\x1b[H\x1b[2J")
				}
				report.write(os.Stdout)
			}
			time.Sleep(againAfter)
		}
	})
}

// check prints what is degraded in a system, and fails if something is.
func (s *statusCommand) check(r *report) error {
	sentences := append([]string{}, r.degraded()...)
	err := s.print(map[string][]string{"degraded": sentences}, func(w io.Writer) {
		for _, sentence := range sentences {
			fmt.Fprintln(w, printable(sentence))
		}
		if len(sentences) == 0 {
			fmt.Fprintln(w, "nothing is degraded")
		}
	})
	if err == nil && len(sentences) > 0 {
		return &exitStatus{1, nil}
	}
	return err
}

// report is the state of a system as its bus tells it.
type report struct {
	At        time.Time              `json:"at"`
	URL       string                 `json:"nats"`
	Processes []proto.Progress       `json:"processes"`
	Streams   map[string]streamState `json:"streams"`
	Writer    proto.WriterMark       `json:"writer"` // who began last to write, by the writer's clock
	Bans      int                    `json:"bans"`   // of operators; not those of settings
	Held      heldState              `json:"held"`
	Shards    map[string]int         `json:"shards"` // how many, by worker
	Relays    []relayRow             `json:"relays"`
}

// streamState is what a stream has.
type streamState struct {
	Messages uint64 `json:"messages"`
	Last     uint64 `json:"last_sequence"`
	Bytes    uint64 `json:"bytes"`
}

// heldState is the events in purgatory.
type heldState struct {
	Events int            `json:"events"`
	By     map[string]int `json:"by"`    // phase and kind, in words
	Hunts  int            `json:"hunts"` // identifiers with events that wait
}

// relayRow is another relay that is synced from.
type relayRow struct {
	Name   string `json:"relay"`            // its identity: host, port, path
	State  string `json:"state"`            // of the connection
	Health string `json:"health"`           // healthy, degraded and so on
	Worker string `json:"worker,omitempty"` // who holds it; empty: none
	Visits bool   `json:"visits,omitempty"` // it is about the daily visits of the relay (GRASP-03)
	proto.RelayState
}

// fails reports whether the relay cannot be reached, or is left alone because it could not.
func (l relayRow) fails() bool { return l.Failures > 0 || !l.NaughtyUntil.IsZero() }

// none stands for the worker of what no worker holds.
const none = "none"

// look looks at a system. It takes as long as every process needs to tell how it stands.
func look(r *reader) (*report, error) {
	progress, err := r.Conn.SubscribeSync(proto.SubjectProgress)
	if err != nil {
		return nil, fmt.Errorf("listen to what the processes tell: %w", err)
	}
	defer progress.Unsubscribe()
	hearing, cancel := context.WithTimeout(r.ctx, tellEvery)
	defer cancel()
	all := &report{
		At: time.Now().UTC(), URL: bus.Redacted(r.Conn.ConnectedUrl()),
		Streams: map[string]streamState{}, Shards: map[string]int{},
	}
	streams := r.JS.ListStreams(r.ctx)
	for info := range streams.Info() {
		all.Streams[info.Config.Name] = streamState{info.State.Msgs, info.State.LastSeq, info.State.Bytes}
	}
	banned, err := bans.Open(r.ctx, r.JS, config.Policy{}, discard)
	if err != nil || streams.Err() != nil {
		return nil, fmt.Errorf("look at the bus: %w", cmp.Or(err, streams.Err()))
	}
	all.Bans = len(slices.Collect(banned.All()))
	if m, found := r.last(proto.StreamEvents, proto.SubjectEventsMark); found {
		r.err = json.Unmarshal(m.Data, &all.Writer)
	}
	holders := r.holders()
	if all.Writer.Writer != holders[proto.ClaimKey(proto.GroupWriter, proto.KeyLog)] {
		all.Writer = proto.WriterMark{} // it has stopped, and no other has begun
	}
	for shard := range proto.Shards {
		worker := holders[proto.ClaimKey(proto.GroupShards, proto.ShardName(shard))]
		all.Shards[cmp.Or(worker, none)]++
	}
	all.Relays, all.Held = r.relays(holders, ">"), sumHeld(bucket[proto.Held](r, proto.BucketHeld, ">"))
	told := map[string]proto.Progress{}
	for r.err == nil {
		m, err := progress.NextMsgWithContext(hearing)
		if err != nil {
			break // all have told, or the connection is lost
		}
		var p proto.Progress
		if json.Unmarshal(m.Data, &p) == nil {
			told[p.Process] = p
		}
	}
	all.Processes = slices.SortedFunc(maps.Values(told), func(a, b proto.Progress) int {
		return strings.Compare(a.Process, b.Process)
	})
	return all, r.err
}

// relays are the relays of which the bus knows something, or those that a pattern of keys names, by
// name.
func (r *reader) relays(holders map[string]string, keys string) []relayRow {
	all := []relayRow{}
	for key, s := range bucket[proto.RelayState](r, proto.BucketRelays, keys) {
		token, visits := proto.VisitOf(key)
		name, _ := proto.DecodeRelay(token)
		worker := holders[proto.ClaimKey(proto.GroupRelays, key)]
		row := relayRow{name, session.Connection(s.Connection).String(), health.State(s.Health).String(), worker, visits, s}
		if visits {
			row.State, row.Health = "visited daily", none
		}
		all = append(all, row)
	}
	slices.SortFunc(all, func(a, b relayRow) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// sumHeld adds up what is held.
func sumHeld(events map[string]proto.Held) heldState {
	sum, hunts := heldState{By: map[string]int{}}, map[string]bool{}
	for _, h := range events {
		if h.Event == nil {
			continue // the writer's mark
		}
		sum.Events++
		sum.By[string(h.Phase)+" "+kindName(h.Event.Kind)]++
		if h.Phase == proto.PhaseWaiting { // in the other phases an event is only kept
			hunts[h.Identifier] = true
		}
	}
	sum.Hunts = len(hunts)
	return sum
}

// write writes a report for people.
func (r *report) write(w io.Writer) {
	table(w, "", r.summary(), cells)
	table(w, "\nQUEUE|PACKS|BYTES", []string{proto.StreamUser, proto.StreamRelease, proto.StreamLive, proto.StreamSync},
		func(name string) []any {
			lane := r.Streams[name]
			return []any{strings.TrimPrefix(name, "GRASP_CANDIDATES_"), lane.Messages, size(lane.Bytes)}
		})
	var reads [][]any
	for _, p := range r.Processes {
		for _, read := range p.Read {
			last := r.Streams[read.Stream].Last
			reads = append(reads, []any{p.Process, read.Name, read.Stream, read.Seq, last, max(last, read.Seq) - read.Seq})
		}
	}
	table(w, "\nPROCESS|PROJECTION|STREAM|HAS READ|LAST|BEHIND", reads, cells)
	table(w, "\nSHARDS HELD BY|SHARDS", slices.Sorted(maps.Keys(r.Shards)),
		func(worker string) []any { return []any{worker, r.Shards[worker]} })
	trouble := func(l relayRow) string {
		// The row names the relay, so its error need not.
		text := clip(strings.TrimPrefix(l.LastError, "open WebSocket to "+l.URL+": "))
		switch {
		case !l.fails():
			return "-"
		case l.Failures == 0: // which is not counted where it is the relay's own
			return text
		}
		return fmt.Sprintf("%d × %s", l.Failures, text)
	}
	var listed, further []relayRow
	for _, l := range r.Relays {
		if l.Further {
			further = append(further, l)
		} else {
			listed = append(listed, l)
		}
	}
	table(w, "\nRELAY|STATE|HEALTH|WORKER|REPOSITORIES|ROOT EVENTS|OPEN|COMPLETE UNTIL|LAST ERROR", listed,
		func(l relayRow) []any {
			return []any{l.Name, l.State, l.Health, cmp.Or(l.Worker, none), l.Repos, l.Roots, l.Subscriptions, l.CompleteUntil,
				trouble(l)}
		})
	if len(further) == 0 {
		return
	}
	table(w, "\nRELAY OF PARTICIPANTS|STATE|HEALTH|WORKER|REPOSITORIES|ROOT EVENTS|LAST CONNECTED|NEXT VISIT|LAST ERROR", further,
		func(l relayRow) []any {
			return []any{l.Name, l.State, l.Health, cmp.Or(l.Worker, none), l.Repos, l.Roots, l.LastConnected, l.NextDaily,
				trouble(l)}
		})
}

// summary is what is told of the whole, a name and a text a line.
func (r *report) summary() (lines [][]any) {
	line := func(name, format string, values ...any) {
		lines = append(lines, []any{name, fmt.Sprintf(format, values...)})
	}
	counts, most := map[string]int64{}, int64(0)
	for n, p := range r.Processes {
		if n == 0 {
			line("domain", "%s", p.Domain)
		}
		line("tendril", "%s: version %s, up for %s", p.Process, p.Version, ago(r.At, p.Started))
		for _, d := range p.Disks {
			line("disk", "%s: %s free of %s", d.Folder, size(d.Free), size(d.Bytes))
		}
		for _, name := range slices.Sorted(maps.Keys(p.Troubles)) {
			line("trouble", "%s: %s: %s", p.Process, name, p.Troubles[name])
		}
		for name, n := range p.Counts {
			counts[name] += n
		}
		most = max(most, p.Counts["log_max_bytes"])
	}
	line("repositories", "%d hosted, %d held, %d ended", counts["repositories_hosted"], counts["repositories_held"],
		counts["repositories_ended"])
	if n := counts["repositories_nobody"]; n > 0 {
		line("authority", "no one has authority over %d of the hosted; tendril repo show says why", n)
	}
	line("clients", "%d connections", counts["clients"])
	line("bans", "%d", r.Bans)
	line("NATS", "%s", r.URL)
	log := r.Streams[proto.StreamEvents]
	line("log", "%d messages (%s of at most %s), last sequence %d; writer %s, since %s", log.Messages, size(log.Bytes),
		size(most), log.Last,
		cmp.Or(r.Writer.Writer, none), clock(r.Writer.At))
	line("rejected", "%d ids remembered", r.Streams[proto.StreamRejected].Messages)
	held := fmt.Sprintf("%d events, fetching git data for %d identifiers", r.Held.Events, r.Held.Hunts)
	for _, what := range slices.Sorted(maps.Keys(r.Held.By)) {
		held += fmt.Sprintf(", %d %s", r.Held.By[what], what)
	}
	line("held", "%s", held)
	return lines
}
