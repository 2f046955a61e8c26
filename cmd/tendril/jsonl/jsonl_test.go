package jsonl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// all reads a file to its end: events as they are, errors in angle brackets.
func all(t testing.TB, in io.Reader) (lines []string) {
	t.Helper()
	r := NewReader(in)
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		text := string(line.Event)
		if line.Err != nil {
			text = "<" + line.Err.Error() + ">"
		}
		lines = append(lines, fmt.Sprint(line.Number, " ", text))
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	none, long := "<"+ErrNoEvent.Error()+">", "<"+ErrTooLong.Error()+">"
	pad := func(n int) string { return `{"content":"` + strings.Repeat("x", n-14) + `"}` }
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"nothing", "", nil},
		{"lines", "{\"a\":1}\n{\"b\":2}\n", []string{`1 {"a":1}`, `2 {"b":2}`}},
		{"no end of the last line", "{}\n{\"a\":[]}", []string{`1 {}`, `2 {"a":[]}`}},
		{"a byte order mark, CRLF, spaces, empty lines", "\xef\xbb\xbf{}\r\n\r\n \t{\"a\":1} \n\n", []string{`1 {}`, `3 {"a":1}`}},
		{"messages", `["EVENT",{"a":1}]` + "\n" + `["EVENT", "sub", {"a":2}]`, []string{`1 {"a":1}`, `2 {"a":2}`}},
		{"other messages", `["EOSE","sub"]` + "\n" + `["EVENT"]` + "\n" + `["OK",{}]` + "\n" + `["EVENT","x"]`, []string{"1 " + none, "2 " + none, "3 " + none, "4 " + none}},
		{"not JSON", "hello\n[\n{", []string{"1 " + none, "2 " + none, "3 " + none}},
		{"longer than the buffer", pad(1<<20) + "\n{}", []string{"1 " + pad(1<<20), "2 {}"}},
		{"as long as may be", pad(MaxLine-1) + "\n{}", []string{"1 " + pad(MaxLine-1), "2 {}"}},
		{"too long", pad(MaxLine+1) + "\n{}", []string{"1 " + long, "2 {}"}},
		{"much too long", strings.Repeat("x", 3*MaxLine) + "\n{}\n" + strings.Repeat("y", 2*MaxLine), []string{"1 " + long, "2 {}", "3 " + long}},
	} {
		got := all(t, strings.NewReader(c.in))
		if len(got) != len(c.want) {
			t.Errorf("%s: %d lines, want %d: %.200q", c.name, len(got), len(c.want), got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: line %d is %.100q, want %.100q", c.name, i, got[i], c.want[i])
			}
		}
	}
}

func TestAReadErrorIsNoEnd(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(strings.NewReader("{}\n"), iotest.ErrReader(broken)))
	if line, err := r.Next(); err != nil || string(line.Event) != "{}" {
		t.Fatalf("%+v, %v", line, err)
	}
	if _, err := r.Next(); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// FuzzNext: whatever is in a file, it is read to its end, and what is given as an event is one
// object of it.
func FuzzNext(f *testing.F) {
	f.Add([]byte("{}\n[\"EVENT\",{}]\n"))
	f.Add([]byte("\xef\xbb\xbf\r\n[[{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		last := 0
		for {
			line, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if line.Number <= last || (line.Event == nil) == (line.Err == nil) {
				t.Fatalf("%+v after line %d", line, last)
			}
			if ev := line.Event; ev != nil && (ev[0] != '{' || ev[len(ev)-1] != '}' || !bytes.Contains(in, ev)) {
				t.Fatalf("%q is no object of the file", ev)
			}
			last = line.Number
		}
	})
}
