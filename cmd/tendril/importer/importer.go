// Package importer offers the events of a file to a running system, by the way on which those of
// other relays come, so that ingest decides them by the same rules. What is refused because
// something is missing is offered again when more has been accepted. Where the git data lies beside
// the events it is pushed in between.
package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

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

// Repositories is the git data that belongs to the events.
type Repositories interface {
	// PushStates pushes branches and tags of repositories of which that was not done yet, and
	// PushPulls the commits of pull requests. They return how many were pushed now.
	PushStates(ctx context.Context, states func(identifier string) ([]*nostr.State, error)) (int, error)
	PushPulls(ctx context.Context, has func(id string) bool) (int, error)
}

// Import is one import. Run is called once.
type Import struct {
	Offerer Offerer
	// Repositories are pushed when the states are held that allow that; nil: there are none.
	Repositories Repositories
	// Refused gets a line of JSON for each event that is not accepted: line, id, kind, reason. nil:
	// nothing is written.
	Refused io.Writer
	// Temp is the folder of the temporary file, which takes as much room as the input. Empty: the
	// system's.
	Temp string
	// Wait is how long it is waited, after all else is done, for git data that is hunted for.
	Wait time.Duration
	// Again is the pause between two looks meanwhile. Default 5 s.
	Again time.Duration
	// Progress is told how far each step is; nil: it is not told.
	Progress func(step string, done, of int)

	file   *os.File // the events, one after the other
	size   int64
	stages [numStages]stage
	pulls  map[string]bool // ids of pull requests
	states map[string][]*record

	mu     sync.Mutex // guards what follows, and the records while they are offered
	moved  int        // grows with everything that may let others be accepted
	failed error
}

// record is an event of the input. It is small, because all of them are in memory.
type record struct {
	at    int64 // where it stands in the temporary file
	size  int32
	line  int32 // of the input, from 1
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

// open reports whether an event is worth offering again.
func (r *record) open() bool { return r.state <= held }

// stage is events that may depend on those of the stages before.
type stage struct {
	records  []*record
	backward bool // the next pass goes from the end to the beginning
	tried    bool
	moved    int // Import.moved when the last pass began
}

const (
	announcements = iota
	states
	pulls
	others
	numStages
)

var stageNames = [numStages]string{"announcements", "states", "pull requests", "other events"}

func stageOf(kind int32) int {
	switch kind {
	case nostr.KindAnnouncement:
		return announcements
	case nostr.KindState:
		return states
	case nostr.KindPR, nostr.KindPRUpdate:
		return pulls
	}
	return others
}

// Run imports everything that in has. The counts are right beside an error too.
func (m *Import) Run(ctx context.Context, in io.Reader) (Counts, error) {
	if m.Progress == nil {
		m.Progress = func(string, int, int) {}
	}
	m.pulls, m.states = map[string]bool{}, map[string][]*record{}
	var err error
	if m.file, err = os.CreateTemp(m.Temp, "tendril-import-"); err != nil {
		return Counts{}, fmt.Errorf("make a temporary file: %w", err)
	}
	defer m.file.Close()
	// Without a name it goes when the process ends, however it ends.
	if err := os.Remove(m.file.Name()); err != nil {
		return Counts{}, fmt.Errorf("make a temporary file: %w", err)
	}
	if err = m.read(ctx, in); err == nil {
		err = m.offerAll(ctx)
	}
	return m.conclude(err)
}

// offerAll offers everything until nothing new is accepted any more.
func (m *Import) offerAll(ctx context.Context) error {
	until := time.Now().Add(m.Wait)
	for {
		before := m.moved
		for n := range m.stages {
			if err := m.offer(ctx, n); err != nil {
				return err
			}
			if err := m.push(ctx, n); err != nil {
				return err
			}
		}
		if m.moved != before {
			continue
		}
		if !m.anyHeld() || !time.Now().Before(until) {
			return nil
		}
		select {
		case <-time.After(cmp.Or(m.Again, 5*time.Second)):
			m.moved++ // it is not known whether git data came: all are offered
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *Import) anyHeld() bool {
	for _, s := range m.stages {
		if slices.ContainsFunc(s.records, func(r *record) bool { return r.state == held }) {
			return true
		}
	}
	return false
}

// push pushes what a stage has made possible, and offers at once what that may have released: the
// stages behind may depend on it.
func (m *Import) push(ctx context.Context, stage int) (err error) {
	if m.Repositories == nil {
		return nil
	}
	pushed, waited := 0, []int{}
	switch stage {
	case states:
		waited = []int{announcements, states}
		pushed, err = m.Repositories.PushStates(ctx, m.statesOf)
	case pulls:
		waited = []int{pulls}
		pushed, err = m.Repositories.PushPulls(ctx, func(id string) bool { return m.pulls[id] })
	}
	m.moved += pushed
	for _, n := range waited {
		if err == nil && pushed > 0 {
			err = m.offer(ctx, n)
		}
	}
	return err
}

// statesOf reads the states of an identifier, each author's newest, the newest of all first.
func (m *Import) statesOf(identifier string) (list []*nostr.State, err error) {
	newest := map[string]*nostr.State{}
	for _, r := range m.states[identifier] {
		raw, err := m.raw(r)
		if err != nil {
			return nil, err
		}
		var ev nostr.Event
		if ev.UnmarshalJSON(raw) != nil {
			continue
		}
		state, err := nostr.ParseState(&ev)
		if err != nil {
			continue
		}
		if before := newest[ev.PubKey]; before == nil || before.Event.CreatedAt < ev.CreatedAt {
			newest[ev.PubKey] = state
		}
	}
	for _, state := range newest {
		list = append(list, state)
	}
	slices.SortFunc(list, func(a, b *nostr.State) int { return cmp.Compare(b.Event.CreatedAt, a.Event.CreatedAt) })
	return list, nil
}

// offer makes passes over a stage until one of them moves nothing. Each goes the other way: events
// that are there newest first are in order then.
func (m *Import) offer(ctx context.Context, n int) error {
	s := &m.stages[n]
	for !s.tried || s.moved != m.moved {
		s.tried, s.moved = true, m.moved
		if err := m.pass(ctx, s, stageNames[n]); err != nil {
			return err
		}
	}
	return nil
}

// afterInterrupt is how long the verdicts on what was offered already are waited for.
const afterInterrupt = 10 * time.Second

// pass offers everything in a stage once that may still be accepted.
func (m *Import) pass(ctx context.Context, s *stage, name string) error {
	offered := slices.DeleteFunc(slices.Clone(s.records), func(r *record) bool { return !r.open() })
	if s.backward {
		slices.Reverse(offered)
	}
	s.backward = !s.backward
	var out sync.WaitGroup
	var err error
	for done, r := range offered {
		m.Progress(name, done, len(offered))
		if err = m.offerOne(ctx, r, &out); err != nil {
			break
		}
	}
	decided := make(chan struct{})
	go func() {
		out.Wait()
		close(decided)
	}()
	ended := ctx.Done()
	if err != nil {
		ended = closed
	}
	select {
	case <-decided:
	case <-ended:
		select {
		case <-decided:
		case <-time.After(afterInterrupt):
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(err, m.failed, ctx.Err())
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

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
	switch waits := v.Outcome == proto.HeldBack || v.Outcome == proto.Duplicate && v.Message == proto.MessagePurgatory; {
	case errors.Is(err, nats.ErrMaxPayload):
		r.state, r.why = refused, "invalid: the event is larger than NATS takes"
	case err != nil:
		m.failed = cmp.Or(m.failed, fmt.Errorf("the event of line %d: %w", r.line, err))
	case waits:
		if v.Outcome == proto.HeldBack {
			m.moved++
		}
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

// conclude counts, and writes down what is not accepted.
func (m *Import) conclude(err error) (c Counts, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var lost []*record
	for _, s := range m.stages {
		c.Lines += len(s.records)
		for _, r := range s.records {
			switch r.state {
			case accepted:
				c.Accepted++
			case held:
				c.Held++
			case known:
				c.Known++
			case invalid:
				c.Invalid++
				lost = append(lost, r)
			case refused:
				lost = append(lost, r)
			case postponed:
				if err == nil {
					lost = append(lost, r)
				}
			}
		}
	}
	c.Refused = len(lost)
	c.Left = c.Lines - c.Accepted - c.Held - c.Known - c.Refused
	if err == nil && c.Lines > 0 && c.Lines == c.Invalid && m.size == 0 {
		err = errors.New("no line of the input holds an event; want the JSON of one on each line, not compressed, and no list of all")
	}
	if m.Refused == nil {
		return c, err
	}
	slices.SortFunc(lost, func(a, b *record) int { return cmp.Compare(a.line, b.line) })
	for _, r := range lost {
		if writing := m.writeRefused(r); writing != nil {
			return c, errors.Join(err, fmt.Errorf("write down what is refused: %w", writing))
		}
	}
	return c, err
}

func (m *Import) writeRefused(r *record) error {
	raw, err := m.raw(r)
	if err != nil {
		return err
	}
	line, err := json.Marshal(struct {
		Line   int32  `json:"line"`
		ID     string `json:"id,omitempty"`
		Kind   int32  `json:"kind"`
		Reason string `json:"reason"`
	}{r.line, idOf(raw), r.kind, r.why})
	if err == nil {
		_, err = m.Refused.Write(append(line, '\n'))
	}
	return err
}

// idOf is the id that an event's JSON says, for those who read what was refused.
func idOf(raw []byte) string {
	var ev struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(raw, &ev) != nil || len(ev.ID) > 64 {
		return ""
	}
	return ev.ID
}
