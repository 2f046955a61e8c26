package outside

import (
	"reflect"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is a moment in seconds after noon; 0 stands for "still open".
func at(seconds int) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return noon.Add(time.Duration(seconds) * time.Second)
}

func TestOverlaps(t *testing.T) {
	t.Parallel()
	span := func(relay, from string, opened, closed int) Span { return Span{relay, from, at(opened), at(closed)} }
	for _, c := range []struct {
		name  string
		spans []Span
		want  []Overlap
	}{
		{"one after the other", []Span{span("r", "a", 1, 5), span("r", "b", 5, 9)}, nil},
		{"the same worker twice", []Span{span("r", "a", 1, 5), span("r", "a", 2, 9)}, nil},
		{"different relays", []Span{span("r", "a", 1, 5), span("s", "b", 2, 9)}, nil},
		{"a hand-over that overlaps", []Span{span("r", "a", 1, 5), span("r", "b", 3, 9)}, []Overlap{{"r", "a", "b", at(3), 2 * time.Second}}},
		{"one within the other", []Span{span("r", "a", 1, 20), span("r", "b", 3, 9)}, []Overlap{{"r", "a", "b", at(3), 6 * time.Second}}},
		{"both still there", []Span{span("r", "a", 1, 0), span("r", "b", 4, 0)}, []Overlap{{"r", "a", "b", at(4), 26 * time.Second}}},
		{"noted in another order", []Span{span("r", "b", 4, 0), span("r", "a", 1, 0)}, []Overlap{{"r", "a", "b", at(4), 26 * time.Second}}},
		{"the longest first", []Span{span("r", "a", 1, 5), span("r", "b", 4, 10), span("s", "a", 1, 9), span("s", "b", 2, 9)},
			[]Overlap{{"s", "a", "b", at(2), 7 * time.Second}, {"r", "a", "b", at(4), time.Second}}},
	} {
		if got := Overlaps(c.spans, at(30)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestGaps(t *testing.T) {
	t.Parallel()
	span := func(opened, closed int) Span { return Span{"r", "a", at(opened), at(closed)} }
	for _, c := range []struct {
		name  string
		since int
		spans []Span
		want  []Gap
	}{
		{"always connected", 1, []Span{span(1, 5), span(5, 0)}, nil},
		{"first connected late", 1, []Span{span(9, 0)}, nil},
		{"a gap", 1, []Span{span(1, 5), span(8, 0)}, []Gap{{"r", at(5), 3 * time.Second}}},
		{"a long span covers a short one", 1, []Span{span(1, 20), span(2, 3), span(20, 0)}, nil},
		{"none now", 1, []Span{span(1, 25)}, []Gap{{"r", at(25), 5 * time.Second}}},
		{"a gap before the time asked for", 9, []Span{span(1, 5), span(8, 0)}, nil},
		{"a gap that the time cuts", 6, []Span{span(1, 5), span(8, 0)}, []Gap{{"r", at(6), 2 * time.Second}}},
	} {
		if got := Gaps(c.spans, at(c.since), at(30)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
