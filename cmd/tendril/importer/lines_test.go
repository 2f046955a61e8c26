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
		{"no end of the last line", "{}\n{\"a\":[]}", []string{`1 {}`, `2 {"a":[]}`}},
		{"a byte order mark, CRLF, spaces, empty lines", "\xef\xbb\xbf{}\r\n\r\n \t{\"a\":1} \n\n", []string{`1 {}`, `3 {"a":1}`}},
		{"messages", `["EVENT",{"a":1}]` + "\n" + `["EVENT", "sub", {"a":2}]`, []string{`1 {"a":1}`, `2 {"a":2}`}},
		{"other messages", `["EOSE","sub"]` + "\n" + `["EVENT"]` + "\n" + `["OK",{}]` + "\n" + `["EVENT","x"]`, []string{"1 " + none, "2 " + none, "3 " + none, "4 " + none}},
		{"not JSON", "hello\n[\n{", []string{"1 " + none, "2 " + none, "3 " + none}},
		{"as long as may be", pad(maxLine-1) + "\n{}", []string{"1 " + pad(maxLine-1), "2 {}"}},
		{"too long", pad(maxLine+1) + "\n{}", []string{"1 " + long, "2 {}"}},
		{"much too long", strings.Repeat("x", 3*maxLine) + "\n{}\n" + strings.Repeat("y", 2*maxLine), []string{"1 " + long, "2 {}", "3 " + long}},
	} {
		var got []string
		if err := Lines(strings.NewReader(c.in), func(line Line) {
			text := string(line.Event)
			if line.Wrong != nil {
				text = "<" + line.Wrong.Error() + ">"
			}
			got = append(got, fmt.Sprint(line.Number, " ", text))
		}); err != nil {
			t.Error(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %.200q, want %.200q", c.name, got, c.want)
		}
	}
	broken := errors.New("broken")
	if err := Lines(io.MultiReader(strings.NewReader("{}\n"), iotest.ErrReader(broken)), func(Line) {}); !errors.Is(err, broken) {
		t.Errorf("a read error is an end: %v", err)
	}
}

// FuzzLines: a file is read to its end, and what is given as an event is one object of it.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\n[\"EVENT\",{}]\n"))
	f.Add([]byte("\xef\xbb\xbf\r\n[[{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		last := 0
		if err := Lines(bytes.NewReader(in), func(line Line) {
			if line.Number <= last || (line.Event == nil) == (line.Wrong == nil) {
				t.Fatalf("%+v after line %d", line, last)
			}
			if ev := line.Event; ev != nil && (ev[0] != '{' || ev[len(ev)-1] != '}' || !bytes.Contains(in, ev)) {
				t.Fatalf("%q is no object of the file", ev)
			}
			last = line.Number
		}); err != nil {
			t.Fatal(err)
		}
	})
}
