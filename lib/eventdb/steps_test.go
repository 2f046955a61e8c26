package eventdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
)

// stepsOf counts what a filter costs that is answered to its end, and its answers.
func stepsOf(t *testing.T, v *View, f nostr.Filter) (steps, answers int) {
	t.Helper()
	s := v.scanner(t.Context(), f)
	if err := s.scan(func(*match) (bool, error) { answers++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return s.steps, answers
}

func viewOf(t *testing.T, events ...*nostr.Event) *View {
	t.Helper()
	db, err := Open("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	recs := make([]Record, len(events))
	for i, ev := range events {
		recs[i] = Record{Seq: uint64(i + 1), Event: ev}
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	t.Cleanup(func() {
		if err := errors.Join(v.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return v
}

// TestLargeEventsCountMore: an event counts what it takes to read it, whether it is an answer or
// only looked at.
func TestLargeEventsCountMore(t *testing.T) {
	t.Parallel()
	const events, size = 20, 100_000
	var large []*nostr.Event
	for n := range events {
		ev := made(n+1, 1, nostr.Timestamp(n))
		ev.Content = strings.Repeat("x", size)
		large = append(large, ev)
	}
	v := viewOf(t, large...)
	unindexed := nostr.Filter{Tags: nostr.TagMap{"long": {"x"}}}
	const read, decoded = events * size / readPerStep, events * size / decodedPerStep
	if steps, _ := stepsOf(t, v, unindexed); steps < decoded || steps > 2*decoded {
		t.Errorf("%d steps to look at %d MB; want %d at least", steps, events*size/1_000_000, decoded)
	}
	queries := map[string]struct {
		least int // steps
		ask   func(*View) (int, error)
	}{
		"JSON": {read, func(v *View) (n int, err error) {
			for _, err := range v.QueryRaw(t.Context(), nostr.Filter{}) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}},
		"events": {decoded, func(v *View) (n int, err error) {
			for _, err := range v.Query(t.Context(), nostr.Filter{}) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}},
	}
	for name, q := range queries {
		if n, err := q.ask(v.Within(q.least)); !errors.Is(err, ErrTooBroad) || n == 0 {
			t.Errorf("%s within %d steps: %d, %v; want some, then too broad", name, q.least, n, err)
		}
		if n, err := q.ask(v.Within(2 * q.least)); err != nil || n != events {
			t.Errorf("%s within %d steps: %d, %v; want all", name, 2*q.least, n, err)
		}
	}
}

// TestMatcher: what only the event tells is read as go-nostr reads it.
func TestMatcher(t *testing.T) {
	t.Parallel()
	me, many := strings.Repeat("2", 64), make([]string, 2000)
	for n := range many {
		many[n] = fmt.Sprint("value ", n)
	}
	for _, tags := range []nostr.Tags{
		nil, {{}}, {{"p"}}, {{"p", ""}}, {{"p", "a"}}, {{"p", "a"}, {"p", "a"}}, {{"p", "c", "a"}}, {{"p", "c"}, {"q", "a"}, {"p", "b"}}, {{"q", "b"}, {"p", "value 1999"}},
	} {
		ev := made(1, 1, 1, tags...)
		for _, f := range []nostr.Filter{
			{}, {Authors: []string{me}}, {Authors: []string{"x", me}}, {Authors: []string{"x"}}, {Tags: nostr.TagMap{"p": nil}}, {Tags: nostr.TagMap{"p": {""}}},
			{Tags: nostr.TagMap{"p": {"a"}}}, {Tags: nostr.TagMap{"p": {"a", "b"}}}, {Tags: nostr.TagMap{"p": {"a", "b"}, "q": {"a"}}}, {Tags: nostr.TagMap{"p": many}},
			{Authors: []string{me}, Tags: nostr.TagMap{"p": many, "q": {"b"}}}, {Authors: []string{"x"}, Tags: nostr.TagMap{"p": many}},
		} {
			m := newMatcher(f)
			for range 2 { // what one event has does not count for the next
				if got, want := m.matches(ev), f.Matches(ev); got != want {
					t.Errorf("%v, %.200v: %v, want %v", tags, f, got, want)
				}
			}
			if m.matches(made(2, 1, 1)) != f.Matches(made(2, 1, 1)) {
				t.Errorf("after %v, %.200v is wrong about an event without tags", tags, f)
			}
		}
	}
}

// TestLongQueriesGiveWay: a query calls the function of its view every few hundred steps, and ends
// with its error.
func TestLongQueriesGiveWay(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for n := range 2000 {
		events = append(events, made(n, 1, nostr.Timestamp(n), nostr.Tag{"t", "x"}))
	}
	v := viewOf(t, events...)
	f := nostr.Filter{Tags: nostr.TagMap{"t": {"x"}}}
	calls := 0
	for _, err := range v.Yielding(func(context.Context) error { calls++; return nil }).IDs(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if calls < 4 {
		t.Errorf("gave way %d times in 2,000 steps", calls)
	}
	enough := errors.New("enough")
	var last error
	for _, err := range v.Yielding(func(context.Context) error { return enough }).IDs(t.Context(), f) {
		last = err
	}
	if !errors.Is(last, enough) {
		t.Errorf("ended with %v", last)
	}
}
