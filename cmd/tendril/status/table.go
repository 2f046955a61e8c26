package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"

	"tendril.dev/lib/nostr"
)

// kindNames are the kinds that wait for git data.
var kindNames = map[int]string{
	nostr.KindAnnouncement: "announcements", nostr.KindState: "states",
	nostr.KindPR: "pull requests", nostr.KindPRUpdate: "updates of pull requests",
}

// maxError is how many letters of an error are shown.
const maxError = 100

// WriteTable writes a report for people.
func (r Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	writer := "no writer yet"
	if r.Log.Writer != "" {
		writer = fmt.Sprintf("writer %s, for %s", Shown(r.Log.Writer), ago(r.At, r.Log.WriterSince))
	}
	fmt.Fprintf(&b, "NATS      %s, version %s\n", Shown(r.Server.URL), Shown(r.Server.Version))
	fmt.Fprintf(&b, "log       %d messages (%s), last sequence %d; %s\n", r.Log.Messages, humanize.IBytes(r.Log.Bytes), r.Log.LastSeq, writer)
	fmt.Fprintf(&b, "rejected  %d ids remembered\n", r.Log.Rejected)
	fmt.Fprintf(&b, "held      %s\n", r.Held.line(r.At))

	table(&b, "LANE\tQUEUED\tWITH THE WRITER\tBYTES\tOF", len(r.Lanes), func(i int) []any {
		l := r.Lanes[i]
		return []any{l.Name, l.Queued, l.Deciding, humanize.IBytes(l.Bytes), humanize.IBytes(uint64(max(l.MaxBytes, 0)))}
	})
	table(&b, "PROCESS\tKEEPS\tOF\tHAS READ\tLAST\tBEHIND", len(r.Reads), func(i int) []any {
		l := r.Reads[i]
		return []any{Shown(l.Process), Shown(l.Name), Shown(l.Stream), l.Seq, l.LastSeq, max(l.LastSeq, l.Seq) - l.Seq}
	})
	workers := byWorker(r.Shards)
	table(&b, "SHARDS HELD BY\tSHARDS\tHELD EVENTS\tHUNTS", len(workers), func(i int) []any {
		s := workers[i]
		return []any{orNone(s.worker), s.shards, s.held, s.hunts}
	})
	table(&b, "RELAY\tSTATE\tHEALTH\tWORKER\tREPOSITORIES\tROOTS\tOPEN\tCOMPLETE UNTIL\tLAST ERROR", len(r.Relays), func(i int) []any {
		l := r.Relays[i]
		return []any{Shown(l.Name), l.State, l.Health, orNone(l.Worker), l.Repositories, l.Roots, l.Subscriptions, Clock(l.CompleteUntil), l.trouble()}
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// table writes a heading and rows, with columns of equal width. Without rows it writes nothing.
func table(b *strings.Builder, heading string, rows int, row func(i int) []any) {
	if rows == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s\n", heading)
	for i := range rows {
		cells := make([]string, 0, 9)
		for _, cell := range row(i) {
			cells = append(cells, fmt.Sprint(cell))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	t.Flush() // to memory: it does not fail
}

// line is what is held, in one line.
func (h Held) line(now time.Time) string {
	if h.Events == 0 {
		return "no events"
	}
	var parts []string
	for _, phase := range slices.Sorted(maps.Keys(h.Phases)) {
		parts = append(parts, fmt.Sprintf("%d %s", h.Phases[phase], Shown(phase)))
	}
	for _, kind := range slices.Sorted(maps.Keys(h.Kinds)) {
		name, known := kindNames[kind]
		if !known {
			name = "of kind " + strconv.Itoa(kind)
		}
		parts = append(parts, fmt.Sprintf("%d %s", h.Kinds[kind], name))
	}
	return fmt.Sprintf("%d events (%s), the oldest for %s; hunts for %d identifiers",
		h.Events, strings.Join(parts, ", "), ago(now, h.Oldest), h.Hunts)
}

// share is what one worker holds.
type share struct {
	worker              string
	shards, held, hunts int
}

// byWorker adds up shards by who holds them; those without a worker come last.
func byWorker(shards []Shard) (all []share) {
	for _, s := range shards {
		i := slices.IndexFunc(all, func(sum share) bool { return sum.worker == s.Worker })
		if i < 0 {
			i = len(all)
			all = append(all, share{worker: s.Worker})
		}
		all[i].shards++
		all[i].held += s.Held
		all[i].hunts += s.Hunts
	}
	slices.SortFunc(all, func(a, b share) int { return cmp.Compare(cmp.Or(a.worker, "\xff"), cmp.Or(b.worker, "\xff")) })
	return all
}

// trouble is why a relay is not connected, cut short.
func (l Relay) trouble() string {
	if l.Failures == 0 {
		return "-"
	}
	// The row names the relay, so its error need not.
	reason := []rune(Shown(strings.TrimPrefix(l.LastError, "open WebSocket to "+l.URL+": ")))
	if len(reason) > maxError {
		reason = append(reason[:maxError-1], '…')
	}
	return fmt.Sprintf("%d × %s", l.Failures, string(reason))
}

func orNone(worker string) string {
	if worker == "" {
		return "none"
	}
	return Shown(worker)
}

// Shown makes text from outside harmless on a terminal and in a table.
func Shown(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// ago is how long ago something was, in whole seconds; clocks may differ.
func ago(now, then time.Time) string {
	return max(now.Sub(then), 0).Truncate(time.Second).String()
}

// Clock is a time for people.
func Clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}
