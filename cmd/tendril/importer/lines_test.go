package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"tendril.dev/test/fixture"
)

func TestLines(t *testing.T) {
	t.Parallel()
	pad := func(n int) string { return `{"content":"` + strings.Repeat("x", n-14) + `"}` }
	words := strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", "BOM", "\xef\xbb\xbf", "NONE", errNoEvent.Error(), "LONG", errTooLong.Error(),
		"FITS", pad(maxLine-1), "OVER", pad(maxLine+1), "HUGE", strings.Repeat("x", 3*maxLine))
	for _, c := range fixture.Rows(`
		nothing                                      |                                            |
		no end of the last line                      | {}\n{"a":[]}                               | 1 {} 2 {"a":[]}
		a byte order mark, CRLF, spaces, empty lines | BOM{}\r\n\r\n \t{"a":1} \n\n               | 1 {} 3 {"a":1}
		messages                                     | ["EVENT",{"a":1}]\n["EVENT", "sub", {"a":2}] | 1 {"a":1} 2 {"a":2}
		other messages                               | ["EOSE","sub"]\n["EVENT"]\n["OK",{}]\n["EVENT","x"] | 1 <NONE> 2 <NONE> 3 <NONE> 4 <NONE>
		not JSON                                     | hello\n[\n{                                | 1 <NONE> 2 <NONE> 3 <NONE>
		as long as may be                            | FITS\n{}                                   | 1 FITS 2 {}
		too long                                     | OVER\n{}                                   | 1 <LONG> 2 {}
		much too long                                | HUGE\n{}\nHUGE                             | 1 <LONG> 2 {} 3 <LONG>`) {
		var got []string
		if err := Lines(strings.NewReader(words.Replace(c[1])), func(line Line) {
			text := string(line.Event)
			if line.Wrong != nil {
				text = "<" + line.Wrong.Error() + ">"
			}
			got = append(got, fmt.Sprint(line.Number, " ", text))
		}); err != nil {
			t.Error(err)
		}
		if got, want := strings.Join(got, " "), words.Replace(c[2]); got != want {
			t.Errorf("%s: %.200q, want %.200q", c[0], got, want)
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
