// Package jsonl reads files of nostr events as relays export them: one event a line.
package jsonl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxLine is how long a line may be, in bytes. The largest event that is stored has a little less
// than 1 MiB; written with escapes and spaces it may be a few times as long.
const MaxLine = 4 << 20

var (
	// ErrTooLong is a line of more than [MaxLine] bytes.
	ErrTooLong = fmt.Errorf("the line is longer than %d bytes", MaxLine)
	// ErrNoEvent is a line that holds no JSON object of an event.
	ErrNoEvent = errors.New(`want the JSON of an event, or ["EVENT",{…}]`)
)

// Line is one line that is not empty.
type Line struct {
	Number int    // from 1
	Event  []byte // JSON of the event, valid until the next line is read; nil: there is none
	Err    error  // why not: [ErrTooLong] or [ErrNoEvent]
}

// Reader reads lines. It keeps one in memory.
type Reader struct {
	in     *bufio.Reader
	text   []byte // of a line
	number int
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(r, 1<<18)} }

// Next returns the next line that is not empty; io.EOF after the last one. A line that is no event
// is no error of the file: the next one may be.
func (r *Reader) Next() (Line, error) {
	for {
		text, tooLong, err := r.line()
		if err != nil {
			return Line{}, err
		}
		r.number++
		if r.number == 1 {
			text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // of an editor that marks its files so
		}
		if text = bytes.TrimSpace(text); len(text) == 0 && !tooLong {
			continue
		}
		line := Line{Number: r.number}
		if tooLong {
			line.Err = ErrTooLong
		} else {
			line.Event, line.Err = Event(text)
		}
		return line, nil
	}
}

// line reads up to the next line break. What is too long is read and thrown away.
func (r *Reader) line() (text []byte, tooLong bool, err error) {
	r.text = r.text[:0]
	for {
		piece, more, err := r.in.ReadLine()
		switch {
		case errors.Is(err, io.EOF) && (tooLong || len(r.text) > 0):
			return r.text, tooLong, nil
		case errors.Is(err, io.EOF):
			return nil, false, io.EOF
		case err != nil:
			return nil, false, fmt.Errorf("read the events: %w", err)
		}
		if tooLong = tooLong || len(r.text)+len(piece) > MaxLine; !tooLong {
			r.text = append(r.text, piece...)
		}
		if !more {
			return r.text, tooLong, nil
		}
	}
}

// Event returns the event's JSON in a line without whitespace around it: the line itself, or what
// stands last in a message ["EVENT", …] of a client or a relay (NIP-01). Whether it is an event is
// not looked at.
func Event(line []byte) ([]byte, error) {
	if len(line) > 1 && line[0] == '{' && line[len(line)-1] == '}' {
		return line, nil
	}
	var message []json.RawMessage
	if len(line) == 0 || line[0] != '[' || json.Unmarshal(line, &message) != nil {
		return nil, ErrNoEvent
	}
	if n := len(message); (n == 2 || n == 3) && string(message[0]) == `"EVENT"` && message[n-1][0] == '{' {
		return message[n-1], nil
	}
	return nil, ErrNoEvent
}
