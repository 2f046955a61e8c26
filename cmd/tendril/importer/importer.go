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
	"time"

	"github.com/tidwall/gjson"

	"tendril.dev/cmd/tendril/jsonl"
	"tendril.dev/lib/nostr"
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

// Progress is how far a pass over a stage is.
type Progress struct {
	Stage      string
	Offered    int
	Of         int
	Begun      time.Time
	Counts     Counts
	Repository string // that is pushed at the moment; then there are no events under way
}

// Repositories is the git data that belongs to the events.
type Repositories interface {
	// Note is told of the events of the file that speak of git data, before anything is offered.
	Note(raw []byte, kind int)
	// PushStates pushes branches and tags of repositories of which that was not done yet, and
	// PushPulls the commits of pull requests. They return how many were pushed now.
	PushStates(ctx context.Context) (int, error)
	PushPulls(ctx context.Context) (int, error)
}

// Import is one import. Run is called once.
type Import struct {
	Offerer Offerer
	// Repositories are pushed when the states are held that allow that; nil: there are none.
	Repositories Repositories
	// Refused gets a line of JSON for each event that is not accepted: line, id, kind, reason. nil:
	// nobody wants to know.
	Refused io.Writer
	// Temp is the folder of temporary files, which take about as much room as the input. Empty: the
	// system's.
	Temp string
	// Wait is how long it is waited, after all else is done, for git data that is hunted for.
	Wait time.Duration
	// Again is the pause between two looks meanwhile. Default 5 s.
	Again time.Duration
	// Progress is told now and then; nil: nobody.
	Progress func(Progress)

	counts Counts
	moved  int // grows with everything that may let others be accepted
	stages []*stage
}

// stage is events that may depend on those of the stages before.
type stage struct {
	name     string
	queue    *spool // to be offered
	next     *spool // was refused in the pass that runs, and must be offered again
	held     *spool // waits for its git data
	backward bool   // the next pass goes through the queue from its end
	tried    bool
	moved    int // Import.moved when the last pass began
}

// The stages.
const (
	announcements = iota
	states
	pulls
	others
	numStages
)

func stageOf(kind int) int {
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
	for _, name := range [numStages]string{"announcements", "states", "pull requests", "other events"} {
		s := &stage{name: name}
		for _, p := range []**spool{&s.queue, &s.next, &s.held} {
			made, err := newSpool(m.Temp)
			if err != nil {
				return m.counts, err
			}
			defer made.close()
			*p = made
		}
		m.stages = append(m.stages, s)
	}
	events, err := m.read(ctx, in)
	if err == nil && events == 0 && m.counts.Lines > 0 {
		err = errors.New("no line of the input holds an event; want the JSON of one on each line, not compressed, and no list of all")
	}
	if err == nil {
		err = m.offerAll(ctx)
	}
	for _, s := range m.stages {
		m.counts.Held += s.held.records
	}
	if err != nil {
		m.counts.Left = m.counts.Lines - m.counts.Accepted - m.counts.Held - m.counts.Known - m.counts.Refused
		return m.counts, err
	}
	return m.counts, m.giveUp()
}

// read divides the input by stages, and returns how many lines look like those of an event.
func (m *Import) read(ctx context.Context, in io.Reader) (events int, err error) {
	lines := jsonl.NewReader(in)
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF):
			return events, nil
		case err != nil:
			return events, err
		case m.counts.Lines%1024 == 0 && ctx.Err() != nil:
			return events, ctx.Err()
		}
		m.counts.Lines++
		r := record{line: line.Number, raw: line.Event}
		if line.Err != nil {
			m.counts.Invalid++
			err = m.refuse(&r, "invalid: "+line.Err.Error())
		} else {
			events++
			// A kind that is none is found when the event is verified. Here it is only for the
			// order.
			r.kind = int(gjson.GetBytes(r.raw, "kind").Int()) & 0xffff
			err = m.stages[stageOf(r.kind)].queue.add(&r)
			if m.Repositories != nil && stageOf(r.kind) != others {
				m.Repositories.Note(r.raw, r.kind)
			}
		}
		if err != nil {
			return events, err
		}
	}
}

// offerAll offers everything until nothing new is accepted any more.
func (m *Import) offerAll(ctx context.Context) error {
	until := time.Now().Add(m.Wait)
	for look := true; ; {
		again, err := m.round(ctx, look)
		if err != nil {
			return err
		}
		if look = false; again {
			continue
		}
		if !m.waits() || !time.Now().Before(until) {
			return nil
		}
		select {
		case <-time.After(cmp.Or(m.Again, 5*time.Second)):
			look = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waits reports whether anything may still come of waiting: something is held.
func (m *Import) waits() bool {
	for _, s := range m.stages {
		if s.held.records > 0 {
			return true
		}
	}
	return false
}

// round offers those stages again for which something has moved since they were offered; with look
// it also looks after what is held. again: something was offered.
func (m *Import) round(ctx context.Context, look bool) (again bool, err error) {
	for n, s := range m.stages {
		if s.queue.records+s.held.records > 0 && (!s.tried || s.moved != m.moved || look && s.held.records > 0) {
			again = true
			if err := m.offer(ctx, s); err != nil {
				return false, err
			}
		}
		if m.Repositories == nil {
			continue
		}
		if err := m.push(ctx, n); err != nil {
			return false, err
		}
	}
	return again, nil
}

// push pushes what a stage has made possible, and notes at once what that has released: the stages
// behind may depend on it.
func (m *Import) push(ctx context.Context, stage int) error {
	pushed, waited, err := 0, []int{}, error(nil)
	switch stage {
	case states:
		waited = []int{announcements, states}
		pushed, err = m.Repositories.PushStates(ctx)
	case pulls:
		waited = []int{pulls}
		pushed, err = m.Repositories.PushPulls(ctx)
	}
	m.moved += pushed
	for _, n := range waited {
		if err == nil && pushed > 0 {
			err = m.offer(ctx, m.stages[n])
		}
	}
	return err
}

// offer makes passes over a stage until one of them moves nothing. Each goes the other way: events
// that are there newest first are in order then.
func (m *Import) offer(ctx context.Context, s *stage) error {
	if err := s.queue.pour(s.held); err != nil {
		return err
	}
	for {
		s.tried, s.moved = true, m.moved
		if err := m.pass(ctx, s); err != nil {
			return err
		}
		if s.moved == m.moved || s.queue.records == 0 {
			return nil
		}
	}
}

// giveUp counts what is still in the queues as refused.
func (m *Import) giveUp() error {
	for _, s := range m.stages {
		next, err := s.queue.reader(false)
		if err != nil {
			return err
		}
		for {
			r, err := next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil {
				err = m.refuse(&r, r.message)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// refuse notes that an event is not accepted.
func (m *Import) refuse(r *record, reason string) error {
	m.counts.Refused++
	if m.Refused == nil {
		return nil
	}
	line, err := json.Marshal(struct {
		Line   int    `json:"line"`
		ID     string `json:"id,omitempty"`
		Kind   int    `json:"kind"`
		Reason string `json:"reason"`
	}{r.line, idOf(r.raw), r.kind, reason})
	if err == nil {
		_, err = m.Refused.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write down what is refused: %w", err)
	}
	return nil
}

func (m *Import) tell(s *stage, offered int, begun time.Time) {
	if m.Progress != nil {
		m.Progress(Progress{Stage: s.name, Offered: offered, Of: s.queue.records, Begun: begun, Counts: m.counts})
	}
}
