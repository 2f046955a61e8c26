package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLines(t *testing.T) {
	t.Parallel()
	none, long := "<"+errNoEvent.Error()+">", "<"+errTooLong.Error()+">"
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
		{"as long as may be", pad(maxLine-1) + "\n{}", []string{"1 " + pad(maxLine-1), "2 {}"}},
		{"too long", pad(maxLine+1) + "\n{}", []string{"1 " + long, "2 {}"}},
		{"much too long", strings.Repeat("x", 3*maxLine) + "\n{}\n" + strings.Repeat("y", 2*maxLine), []string{"1 " + long, "2 {}", "3 " + long}},
	} {
		var got []string
		for line, err := range Lines(strings.NewReader(c.in)) {
			text := string(line.Event)
			if line.Wrong != nil {
				text = "<" + line.Wrong.Error() + ">"
			}
			if got = append(got, fmt.Sprint(line.Number, " ", text)); err != nil {
				t.Error(err)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %.200q, want %.200q", c.name, got, c.want)
		}
	}
	broken, last := errors.New("broken"), error(nil)
	for _, err := range Lines(io.MultiReader(strings.NewReader("{}\n"), iotest.ErrReader(broken))) {
		last = err
	}
	if !errors.Is(last, broken) {
		t.Errorf("a read error is an end: %v", last)
	}
}

// FuzzLines: a file is read to its end, and what is given as an event is one object of it.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\n[\"EVENT\",{}]\n"))
	f.Add([]byte("\xef\xbb\xbf\r\n[[{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		last := 0
		for line, err := range Lines(bytes.NewReader(in)) {
			if err != nil || line.Number <= last || (line.Event == nil) == (line.Wrong == nil) {
				t.Fatalf("%+v after line %d: %v", line, last, err)
			}
			if ev := line.Event; ev != nil && (ev[0] != '{' || ev[len(ev)-1] != '}' || !bytes.Contains(in, ev)) {
				t.Fatalf("%q is no object of the file", ev)
			}
			last = line.Number
		}
	})
}
