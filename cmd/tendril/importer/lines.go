package importer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
)

// maxLine is how long a line may be, in bytes. The largest event that is stored has a little less
// than 1 MiB; written with escapes and spaces it may be a few times as long.
const maxLine = 4 << 20

var (
	errTooLong = fmt.Errorf("the line is longer than %d bytes", maxLine)
	errNoEvent = errors.New(`want the JSON of an event, or ["EVENT",{…}]`)
)

// Line is one line of the input that is not empty.
type Line struct {
	Number int    // from 1
	Event  []byte // JSON of the event, valid until the next line is read; nil: there is none
	Wrong  error  // why there is none
}

// Lines are the lines of a file of events. An error ends them: the input cannot be read.
func Lines(from io.Reader) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		in := bufio.NewReaderSize(from, 1<<18)
		for number := 1; ; number++ {
			text, err := in.ReadBytes('\n')
			if errors.Is(err, io.EOF) && len(text) == 0 {
				return
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(Line{Number: number}, fmt.Errorf("read the events: %w", err))
				return
			}
			if number == 1 {
				text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // some editors write it
			}
			line := Line{Number: number}
			text = bytes.TrimSpace(text)
			switch {
			case len(text) == 0:
				continue
			case len(text) > maxLine:
				line.Wrong = errTooLong
			default:
				line.Event, line.Wrong = eventIn(text)
			}
			if !yield(line, nil) {
				return
			}
		}
	}
}

// eventIn returns the event's JSON in a line: the line itself, or the last element of a message
// ["EVENT", …] of a client or a relay (NIP-01). It does not look whether that is an event.
func eventIn(line []byte) ([]byte, error) {
	if len(line) > 1 && line[0] == '{' && line[len(line)-1] == '}' {
		return line, nil
	}
	var message []json.RawMessage
	if line[0] != '[' || json.Unmarshal(line, &message) != nil {
		return nil, errNoEvent
	}
	if n := len(message); (n == 2 || n == 3) && string(message[0]) == `"EVENT"` && message[n-1][0] == '{' {
		return message[n-1], nil
	}
	return nil, errNoEvent
}
