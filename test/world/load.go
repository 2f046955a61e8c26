package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"tendril.dev/test/outside"
)

// ErrMoved is part of the error of an action whose connection the server closed as one that goes
// away (WebSocket status 1001) before the answer. A client asks again at once, elsewhere: that
// counts as moved, not as failed.
var ErrMoved = errors.New("the server went away")

// Action is something that users do.
type Action struct {
	Name  string
	Every time.Duration // pause between two requests
	// Do makes one request, within the time that t has; attempt counts from 0 for each. It returns an
	// error that wraps ErrMoved if the server said goodbye before it answered.
	Do func(t testing.TB, attempt int) error
}

// How long a client tries again, and how long one attempt may take.
const (
	firstPause = 250 * time.Millisecond
	longest    = 4 * time.Second
	tryFor     = 2 * time.Minute
	oneAttempt = time.Minute
)

// Tally is how the requests of one action went.
type Tally struct {
	Requests int            `json:"requests"`         // that have ended
	Failed   int            `json:"failed"`           // whose first try failed
	Moved    int            `json:"moved"`            // asked again because the server went away
	GaveUp   int            `json:"gave_up"`          // that never succeeded
	Slowest  time.Duration  `json:"slowest"`          // longest time from the first try to success
	Errors   map[string]int `json:"errors,omitempty"` // what failures said, a bounded number of different ones
}

// maxErrors bounds the different errors that a tally keeps.
const maxErrors = 20

// Meter does again and again what users do, as a normal client would: what fails is tried again for
// a while. It counts what failed at the first try, and what never succeeded. Its zero value is
// ready.
type Meter struct {
	mu      sync.Mutex
	tallies map[string]*Tally
}

// Tallies returns how it stands, by the names of actions.
func (m *Meter) Tallies() map[string]Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]Tally{}
	for name, t := range m.tallies {
		c := *t
		c.Errors = maps.Clone(t.Errors)
		all[name] = c
	}
	return all
}

// count changes the tally of an action.
func (m *Meter) count(action string, change func(t *Tally)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tallies == nil {
		m.tallies = map[string]*Tally{}
	}
	t := m.tallies[action]
	if t == nil {
		t = &Tally{Errors: map[string]int{}}
		m.tallies[action] = t
	}
	change(t)
}

// Run does the actions side by side until stop is done, and returns when the last request has
// ended.
func (m *Meter) Run(t testing.TB, stop <-chan struct{}, actions []Action) {
	var all sync.WaitGroup
	for _, a := range actions {
		all.Go(func() {
			for pause := time.Duration(rand.Int64N(int64(a.Every) + 1)); ; pause = a.Every {
				select {
				case <-stop:
					return
				case <-t.Context().Done():
					return
				case <-time.After(pause):
				}
				m.request(t, a)
			}
		})
	}
	all.Wait()
}

// request makes one request and tries again until it succeeds or its time is over.
func (m *Meter) request(t testing.TB, a Action) {
	began, pause, failed, moved := time.Now(), firstPause, false, 0
	for attempt := 0; ; attempt++ {
		ctx, cancel := context.WithTimeout(t.Context(), oneAttempt)
		err := a.Do(within{t, ctx}, attempt)
		cancel()
		if err == nil {
			break
		}
		if t.Context().Err() != nil {
			return // the whole load was ended in the middle of it: no result
		}
		if errors.Is(err, ErrMoved) && moved < 3 {
			moved++
			m.count(a.Name, func(t *Tally) { t.Moved++ })
			continue
		}
		failed = true
		m.count(a.Name, func(t *Tally) { t.note(err) })
		if time.Since(began) > tryFor {
			m.count(a.Name, func(t *Tally) { t.Requests++; t.Failed++; t.GaveUp++ })
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
	m.count(a.Name, func(t *Tally) {
		t.Requests++
		if failed {
			t.Failed++
		}
		t.Slowest = max(t.Slowest, time.Since(began))
	})
}

// within is a test that has until a time.
type within struct {
	testing.TB
	ctx context.Context
}

func (w within) Context() context.Context { return w.ctx }

// note keeps what an error says, as long as there is room for another text.
func (t *Tally) note(err error) {
	text := err.Error()
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	if _, known := t.Errors[text]; !known && len(t.Errors) >= maxErrors {
		text = "others"
	}
	t.Errors[text]++
}

// Sum adds up tallies; the errors are those of all.
func Sum(tallies map[string]Tally) Tally {
	sum := Tally{Errors: map[string]int{}}
	for _, t := range tallies {
		sum.Requests, sum.Failed, sum.Moved, sum.GaveUp = sum.Requests+t.Requests, sum.Failed+t.Failed, sum.Moved+t.Moved, sum.GaveUp+t.GaveUp
		sum.Slowest = max(sum.Slowest, t.Slowest)
		for text, n := range t.Errors {
			sum.Errors[text] += n
		}
	}
	return sum
}

// Lines describes tallies for a person, one line an action and one an error.
func Lines(tallies map[string]Tally) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(tallies)) {
		t := tallies[name]
		lines = append(lines, fmt.Sprintf("%-8s %6d requests, %d failed at the first try, %d given up, %d moved, slowest %v",
			name, t.Requests, t.Failed, t.GaveUp, t.Moved, t.Slowest.Round(time.Millisecond)))
		for _, text := range slices.Sorted(maps.Keys(t.Errors)) {
			lines = append(lines, fmt.Sprintf("%-8s   %d × %s", "", t.Errors[text], text))
		}
	}
	return lines
}

// Done is the last line of a task of the outside world of `make k8s-test` that has succeeded.
const Done = "done"

// Status is how that outside world stands.
type Status struct {
	Now       time.Time        `json:"now"` // on the clock of the spans
	Published int              `json:"published"`
	Clients   map[string]Tally `json:"clients"` // by what they do
	Spans     []outside.Span   `json:"spans"`   // who was connected to which relay
	Relays    []string         `json:"relays"`  // all relays, by their URLs
}
