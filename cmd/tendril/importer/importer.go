// Package importer offers the events of a file or a relay to a running system, by the way on which
// those of other relays come, so that ingest decides them by the same rules. It offers again what
// was refused because something is missing, when more has been accepted. Where the git data lies
// beside the events it is pushed in between.
package importer

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

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
	Invalid  int `json:"invalid"`  // of the refused, those that are no genuine events
	Left     int `json:"left"`     // were not decided, because the import was interrupted
}

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Import is one import: Read, and then Run.
type Import struct {
	Offerer Offerer
	// Push pushes branches and tags; with pulls it pushes the commits of these pull requests
	// instead, by the ids of their events. nil: there is no git data.
	Push func(ctx context.Context, pulls map[string]bool) error
	// Progress is told how far each step is.
	Progress func(step string, done, of int)

	file    *os.File // the events, one after the other
	size    int64
	records []*record
	pulls   map[string]bool

	mu     sync.Mutex // guards what follows, and the records while they are offered
	moved  int        // grows with everything that may let others be accepted
	failed error
}

// record is an event of the input. It is small, because all of them are in memory.
type record struct {
	at    int64 // where it is in the temporary file
	made  nostr.Timestamp
	size  int32
	line  int32 // of the input
	kind  int32
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

// order is the order in which events are offered: others may depend on those before.
func (r *record) order() int {
	switch r.kind {
	case nostr.KindAnnouncement:
		return 0
	case nostr.KindState:
		return 1
	}
	return 2
}

// New makes an import. It writes to a temporary file, which takes as much room as the input.
func New() (*Import, error) {
	file, err := os.CreateTemp("", "tendril-import-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	// Without a name it goes when the process ends, however it ends.
	if err := os.Remove(file.Name()); err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	return &Import{file: file, pulls: map[string]bool{}, Progress: func(string, int, int) {}}, nil
}

// Read takes the input into the temporary file, and verifies it on all processors.
func (m *Import) Read(lines iter.Seq2[Line, error]) error {
	out := bufio.NewWriterSize(m.file, 1<<20)
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	var failed error
	n := 0
	for line, err := range lines {
		if failed = err; err != nil {
			break
		}
		line.Event = slices.Clone(line.Event)
		group.Go(func() error {
			r := &record{line: int32(line.Number)}
			ev, raw, wrong := verify(line)
			if wrong != nil {
				r.state, r.why = invalid, "invalid: "+wrong.Error()
				r.kind = int32(gjson.GetBytes(raw, "kind").Int()) & 0xffff
			} else {
				r.kind, r.made = int32(ev.Kind), ev.CreatedAt
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			r.at, r.size = m.size, int32(len(raw))
			m.size += int64(len(raw))
			m.records = append(m.records, r)
			if wrong == nil && (r.kind == nostr.KindPR || r.kind == nostr.KindPRUpdate) {
				m.pulls[ev.ID] = true
			}
			_, err := out.Write(raw)
			return err
		})
		n++
		m.Progress("events read", n, -1)
	}
	if err := errors.Join(group.Wait(), out.Flush()); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	if failed == nil && n > 0 && m.size == 0 {
		failed = errors.New("no line of the input holds an event; want the JSON of one on each line, not compressed, and no list of all")
	}
	slices.SortFunc(m.records, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.order(), b.order()), cmp.Compare(a.made, b.made), cmp.Compare(a.line, b.line))
	})
	return failed
}

var (
	errForm      = errors.New("not an event: its id, public key or signature is not lower-case hex of the right length")
	errID        = errors.New("the id is not that of the event")
	errSignature = errors.New("the signature is wrong")
)

// verify checks an event's id and signature. raw is JSON that can be sent, or what came.
func verify(line Line) (ev *nostr.Event, raw []byte, err error) {
	if line.Wrong != nil {
		return nil, line.Event, line.Wrong
	}
	ev, err = nostr.Parse(line.Event)
	var sig [64]byte
	switch {
	case err != nil:
		return nil, line.Event, fmt.Errorf("not an event: %w", err)
	case !nostr.IsHex64(ev.ID) || !nostr.IsHex64(ev.PubKey) || !nostr.ReadHex(sig[:], ev.Sig):
		return nil, line.Event, errForm
	case !nostr.HasID(ev):
		return nil, line.Event, errID
	case !nostr.Signed(ev):
		return nil, line.Event, errSignature
	}
	return ev, nostr.Encode(ev), nil
}

// Run offers everything that was read. The counts are right beside an error too.
func (m *Import) Run(ctx context.Context) (Counts, error) {
	err := m.run(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	c := Counts{Lines: len(m.records)}
	for _, r := range m.records {
		if r.state == postponed && err == nil {
			r.state = refused
		}
		switch r.state {
		case accepted:
			c.Accepted++
		case held:
			c.Held++
		case known:
			c.Known++
		case invalid:
			c.Invalid++
			c.Refused++
		case refused:
			c.Refused++
		default:
			c.Left++
		}
	}
	return c, err
}

// run offers announcements and states, pushes what they allow, and then offers all else.
func (m *Import) run(ctx context.Context) error {
	first, _ := slices.BinarySearchFunc(m.records, 2, func(r *record, order int) int { return cmp.Compare(r.order(), order) })
	if m.Push == nil {
		return m.offer(ctx, m.records)
	}
	if err := m.offer(ctx, m.records[:first]); err != nil {
		return err
	}
	if err := m.Push(ctx, nil); err != nil {
		return err
	}
	if err := m.offer(ctx, m.records); err != nil || len(m.pulls) == 0 {
		return err
	}
	if err := m.Push(ctx, m.pulls); err != nil {
		return err
	}
	return m.offer(ctx, m.records)
}

// offer makes passes over events until one of them moves nothing.
func (m *Import) offer(ctx context.Context, records []*record) error {
	for before := -1; before != m.moved; {
		before = m.moved
		open := slices.DeleteFunc(slices.Clone(records), func(r *record) bool { return r.state > held })
		if err := m.pass(ctx, open); err != nil {
			return err
		}
	}
	return nil
}

// afterInterrupt is how long the import waits for verdicts on what it has offered already.
const afterInterrupt = 10 * time.Second

// pass offers each of some events once.
func (m *Import) pass(ctx context.Context, records []*record) error {
	var out sync.WaitGroup
	var err error
	for done, r := range records {
		m.Progress("events offered", done, len(records))
		if err = m.offerOne(ctx, r, &out); err != nil {
			break
		}
	}
	decided := make(chan struct{})
	go func() {
		out.Wait()
		close(decided)
	}()
	select {
	case <-decided:
	case <-ctx.Done():
		select {
		case <-decided:
		case <-time.After(afterInterrupt):
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(err, m.failed, ctx.Err())
}

// offerOne offers an event. It blocks while too many are without a verdict.
func (m *Import) offerOne(ctx context.Context, r *record, out *sync.WaitGroup) error {
	m.mu.Lock()
	failed := m.failed
	m.mu.Unlock()
	if err := cmp.Or(failed, ctx.Err()); err != nil {
		return err
	}
	raw, err := m.raw(r)
	if err != nil {
		return err
	}
	out.Add(1)
	err = m.Offerer.Offer(ctx, candidates.Candidate{
		Raw: raw, Lane: proto.LaneSyncHistoric, Source: proto.SourceImport,
		Done: func(v proto.Verdict, err error) {
			m.decide(r, v, err)
			out.Done()
		},
	})
	if err != nil {
		out.Done()
	}
	return err
}

// decide notes what became of an event.
func (m *Import) decide(r *record, v proto.Verdict, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	waited := r.state == held
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		r.state, r.why = refused, "invalid: the event is larger than NATS takes"
	case err != nil:
		m.failed = cmp.Or(m.failed, fmt.Errorf("the event of line %d: %w", r.line, err))
	case v.Outcome == proto.HeldBack:
		r.state = held
		m.moved++
	case v.Outcome == proto.Duplicate && v.Message == proto.MessagePurgatory:
		r.state = held
	case v.Outcome == proto.Accepted, v.Outcome == proto.Duplicate && waited:
		r.state = accepted
		m.moved++
	case v.Outcome == proto.Duplicate:
		r.state = known
	case v.Retry:
		r.state, r.why = postponed, strings.Clone(v.Message)
	default:
		r.state, r.why = refused, strings.Clone(v.Message)
	}
}

// raw reads an event from the temporary file.
func (m *Import) raw(r *record) ([]byte, error) {
	raw := make([]byte, r.size)
	if _, err := m.file.ReadAt(raw, r.at); err != nil {
		return nil, fmt.Errorf("read a temporary file: %w", err)
	}
	return raw, nil
}

// WriteRefused writes what was refused, a line of JSON each, in the order of the input.
func (m *Import) WriteRefused(out io.Writer) error {
	lost := slices.DeleteFunc(slices.Clone(m.records), func(r *record) bool { return r.state < refused })
	slices.SortFunc(lost, func(a, b *record) int { return cmp.Compare(a.line, b.line) })
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, r := range lost {
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
			return fmt.Errorf("write down what is refused: %w", err)
		}
	}
	return nil
}
