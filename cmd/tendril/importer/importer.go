// Package importer offers the events of a file or a relay to a running system, by the way on which
// those of other relays come, so that ingest decides them by the same rules. It offers again what
// was refused because something is missing, when more has been accepted. Where the git data lies
// beside the events it is pushed in between. It decides nothing about an event.
package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Counts is what became of the events.
type Counts struct {
	Lines    int `json:"lines"`    // of the file that are not empty
	Accepted int `json:"accepted"` // are served now and were not before
	Held     int `json:"held"`     // wait for their git data
	Known    int `json:"known"`    // were here before, or a newer event is in their place
	Refused  int `json:"refused"`  // by the rules, or because what they belong to is not here
	Invalid  int `json:"invalid"`  // of the refused, those with an invalid id or signature, or that are no events
	Left     int `json:"left"`     // were not decided, because the import was interrupted
}

// Import is one import: Read, and then Run.
type Import struct {
	// Offer takes candidates, as a *candidates.Sender does.
	Offer func(context.Context, candidates.Candidate) error
	// Push pushes branches and tags; with pulls it pushes the commits of these pull requests
	// instead, by the ids of their events. It reports whether a push was taken that was not taken
	// before, so that others may be now. nil: there is no git data.
	Push func(ctx context.Context, pulls map[string]Pull) (more bool, err error)
	// Progress is told how far each step is: of is 0 where that is not known. It must be set.
	Progress func(step string, done, of int)

	// Announced are the announcements of the input, the newest of each repository.
	Announced map[nostr.RepoRef]*nostr.Announcement
	// Pulls are the pull requests of the input and their updates, by the ids of their events.
	Pulls map[string]Pull

	file    *os.File // the events, one after the other
	records []*record
	moved   atomic.Int64 // grows with everything that may let others be accepted
}

// Pull is a pull request, or an update of one.
type Pull struct {
	Author, Commit string
	Repos          []nostr.RepoRef // that it is for
	Root           string          // of an update, the id of its pull request
}

// record is an event of the input. It is small, because all of them are in memory.
type record struct {
	at    int64 // where it is in the temporary file
	made  nostr.Timestamp
	size  int32
	line  int32 // of the input
	kind  int32
	order int8 // in which events are offered: others may depend on those before
	state outcome
	why   string // it is refused
}

type outcome uint8

const (
	undecided outcome = iota
	postponed         // refused, because something is missing
	held
	accepted
	known
	refused
	invalid
)

// Read takes the input into a temporary file, which takes as much room, and verifies it on all
// processors. lines hands it each line, and says why the input cannot be read.
func (m *Import) Read(lines func(each func(Line)) error) (err error) {
	if m.file, err = os.CreateTemp("", "tendril-import-"); err != nil {
		return err
	}
	// Without a name it goes when the process ends, however it ends.
	if err := os.Remove(m.file.Name()); err != nil {
		return err
	}
	out := bufio.NewWriterSize(m.file, 1<<20)
	m.Pulls, m.Announced = map[string]Pull{}, map[nostr.RepoRef]*nostr.Announcement{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	at, n := int64(0), 0
	err = lines(func(line Line) {
		group.Go(func() error {
			r, raw, ev := verify(line)
			mu.Lock()
			defer mu.Unlock()
			r.at, r.size = at, int32(len(raw))
			at += int64(len(raw))
			m.records = append(m.records, r)
			if ev != nil {
				m.note(ev)
			}
			_, err := out.Write(raw)
			return err
		})
		n++
		m.Progress("events read", n, 0)
	})
	if err = errors.Join(err, group.Wait(), out.Flush()); err == nil && n > 0 && at == 0 {
		err = errors.New("no line of the input is an event; want one event as JSON on each line, not compressed, and no " +
			"JSON array around them")
	}
	slices.SortFunc(m.records, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.made, b.made), cmp.Compare(a.line, b.line))
	})
	return err
}

// note keeps what git data needs to know of an event.
func (m *Import) note(ev *nostr.Event) {
	switch ev.Kind {
	case nostr.KindAnnouncement:
		a, err := nostr.ParseAnnouncement(ev)
		ref := nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}
		if older := m.Announced[ref]; err == nil && (older == nil || older.Event.CreatedAt < ev.CreatedAt) {
			m.Announced[ref] = a
		}
	case nostr.KindPR, nostr.KindPRUpdate:
		if pr, err := nostr.ParsePullRequest(ev); err == nil {
			m.Pulls[ev.ID] = Pull{Author: ev.PubKey, Commit: pr.Commit, Repos: pr.Repos, Root: pr.Root}
		}
	}
}

// Count counts the events that were read.
func (m *Import) Count() (c Counts, byKind map[int]int) {
	byKind = map[int]int{}
	for _, r := range m.records {
		if c.Lines++; r.state == invalid {
			c.Invalid++
		} else {
			byKind[int(r.kind)]++
		}
	}
	return c, byKind
}

// Waiting are the repositories of the input whose announcement or state waits for its git data.
func (m *Import) Waiting() (names []string, err error) {
	for _, r := range m.records {
		if r.state != held || r.order > 1 {
			continue
		}
		raw, err := m.raw(r)
		if err != nil {
			return nil, err
		}
		ev, err := nostr.Parse(raw)
		if err != nil {
			return nil, err
		}
		names = append(names, nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}.Name())
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Verify reads an event, and checks its id and signature.
func Verify(raw []byte) (*nostr.Event, error) {
	ev, err := nostr.Parse(raw)
	var sig [64]byte
	switch {
	case err != nil:
		return nil, fmt.Errorf("not an event: %w", err)
	case !nostr.IsHex64(ev.ID) || !nostr.IsHex64(ev.PubKey) || !nostr.ReadHex(sig[:], ev.Sig):
		return nil, errors.New("not an event: its id, public key or signature is not lower-case hex of the right length")
	case !nostr.HasID(ev):
		return nil, errors.New("the id is not that of the event")
	case !nostr.Signed(ev):
		return nil, errors.New("the signature is wrong")
	}
	return ev, nil
}

// verify makes a record of a line. raw is JSON that can be sent, or what came; ev is nil of what is
// no event.
func verify(line Line) (r *record, raw []byte, ev *nostr.Event) {
	r = &record{line: int32(line.Number), order: 2}
	ev, err := Verify(line.Event)
	if err = cmp.Or(line.Wrong, err); err != nil {
		r.kind = int32(gjson.GetBytes(line.Event, "kind").Int()) & 0xffff
		r.state, r.why = invalid, "invalid: "+err.Error()
		return r, line.Event, nil
	}
	r.kind, r.made = int32(ev.Kind), ev.CreatedAt
	switch ev.Kind {
	case nostr.KindAnnouncement:
		r.order = 0
	case nostr.KindState:
		r.order = 1
	}
	return r, nostr.Encode(ev), ev
}

// Run offers everything that was read: announcements and states, and when what they allow is pushed
// all else. The counts are right beside an error too.
func (m *Import) Run(ctx context.Context) (Counts, error) {
	err := m.run(ctx)
	var of [invalid + 1]int
	for _, r := range m.records {
		if r.state == postponed && err == nil {
			r.state = refused
		}
		of[r.state]++
	}
	return Counts{
		Lines: len(m.records), Accepted: of[accepted], Held: of[held], Known: of[known],
		Refused: of[refused] + of[invalid], Invalid: of[invalid], Left: of[undecided] + of[postponed],
	}, err
}

func (m *Import) run(ctx context.Context) error {
	if m.Push == nil {
		return m.offer(ctx, 2)
	}
	if err := m.push(ctx, 1, nil); err != nil {
		return err
	}
	if len(m.Pulls) == 0 {
		return m.offer(ctx, 2)
	}
	if err := m.push(ctx, 2, m.Pulls); err != nil {
		return err
	}
	return m.offer(ctx, 2)
}

// push offers the events up to an order and pushes what they allow, until no push is taken any
// more: pushing many repositories takes longer than an announcement waits for its data, and one
// that has waited in vain must be offered again.
func (m *Import) push(ctx context.Context, order int8, pulls map[string]Pull) error {
	for more := true; more; {
		err := m.offer(ctx, order)
		if err == nil {
			more, err = m.Push(ctx, pulls)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// offer makes passes over the events up to an order until one of them moves nothing.
func (m *Import) offer(ctx context.Context, order int8) error {
	for before := int64(-1); before != m.moved.Load(); {
		before = m.moved.Load()
		if err := m.pass(ctx, order); err != nil {
			return err
		}
	}
	return nil
}

// pass offers each event up to an order that may still be accepted. Offer blocks while too many are
// without a verdict.
func (m *Import) pass(ctx context.Context, order int8) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var out sync.WaitGroup
	for n, r := range m.records {
		if ctx.Err() != nil || r.order > order {
			break
		}
		if r.state > held {
			continue
		}
		m.Progress("events offered", n, len(m.records))
		raw, err := m.raw(r)
		if err == nil {
			out.Add(1)
			err = m.Offer(ctx, candidates.Candidate{
				Raw: raw, Lane: proto.LaneImport, Source: proto.SourceImport,
				Done: func(v proto.Verdict, err error) {
					defer out.Done()
					if err := m.decide(r, v, err); err != nil {
						stop(fmt.Errorf("the event of line %d: %w", r.line, err))
					}
				},
			})
			if err != nil {
				out.Done()
			}
		}
		if err != nil {
			stop(fmt.Errorf("offer the event of line %d: %w", r.line, err))
		}
	}
	out.Wait()
	return context.Cause(ctx)
}

// decide notes what became of an event.
func (m *Import) decide(r *record, v proto.Verdict, err error) error {
	before := r.state
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		r.state, r.why = refused, "invalid: the event is larger than NATS takes"
	case err != nil && (!errors.As(err, new(*candidates.Later)) || v.TakesNoMore()):
		return err
	case v.Outcome == proto.HeldBack, v.Message == proto.MessagePurgatory:
		r.state = held
	case v.Outcome == proto.Accepted, v.Outcome == proto.Duplicate && before == held:
		r.state = accepted
	case v.Outcome == proto.Duplicate:
		r.state = known
	case v.Retry:
		r.state, r.why = postponed, strings.Clone(v.Message)
	default:
		r.state, r.why = refused, strings.Clone(v.Message)
	}
	if r.state != before && (r.state == held || r.state == accepted) {
		m.moved.Add(1)
	}
	return nil
}

// raw reads an event from the temporary file.
func (m *Import) raw(r *record) ([]byte, error) {
	raw := make([]byte, r.size)
	_, err := m.file.ReadAt(raw, r.at)
	return raw, err
}

// WriteRefused writes what was refused, a line of JSON each.
func (m *Import) WriteRefused(out io.Writer) error {
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, r := range m.records {
		if r.state < refused {
			continue
		}
		raw, err := m.raw(r)
		if err != nil {
			return err
		}
		err = lines.Encode(struct {
			Line   int32  `json:"line"`
			ID     string `json:"id,omitempty"`
			Kind   int32  `json:"kind"`
			Reason string `json:"reason"`
		}{r.line, gjson.GetBytes(raw, "id").String(), r.kind, r.why})
		if err != nil {
			return err
		}
	}
	return nil
}

// maxLine is how long a line may be, in bytes. The largest event that is stored has a little less
// than 1 MiB; written with escapes and spaces it may be a few times as long.
const maxLine = 4 << 20

var (
	errTooLong = fmt.Errorf("the line is longer than %d bytes", maxLine)
	errNoEvent = errors.New(`want the JSON of an event, or ["EVENT",{…}]`)
)

// Line is one line of the input that is not empty.
type Line struct {
	Number int    // from 1
	Event  []byte // JSON of the event; nil: there is none
	Wrong  error  // why there is none
}

// Lines reads the lines of a file of events.
func Lines(from io.Reader, each func(Line)) error {
	in := bufio.NewReaderSize(from, 1<<18)
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the events: %w", err)
		}
		line := Line{Number: number}
		if text = bytes.TrimSpace(bytes.TrimPrefix(text,
			[]byte("\xef\xbb\xbf"))); len(text) > maxLine { // some editors begin with it
			line.Wrong = errTooLong
		} else if len(text) > 0 {
			line.Event, line.Wrong = eventIn(text)
		}
		if len(text) > 0 {
			each(line)
		}
		if err != nil {
			return nil
		}
	}
}

// eventIn returns the event's JSON in a line: the line itself, or the last element of a message
// ["EVENT", …] of a client or a relay (NIP-01). It does not look whether that is an event.
func eventIn(line []byte) ([]byte, error) {
	if line[0] == '{' && line[len(line)-1] == '}' {
		return line, nil
	}
	message := gjson.ParseBytes(line).Array()
	last := len(message) - 1
	if gjson.ValidBytes(line) && (last == 1 || last == 2) && message[0].String() == "EVENT" && message[last].IsObject() {
		return []byte(message[last].Raw), nil
	}
	return nil, errNoEvent
}
