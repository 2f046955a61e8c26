package proto

import (
	"bytes"
	"errors"
	"fmt"
)

// A message with candidates is a pack: events, each its JSON on one line, with a line break between
// two of them. What its headers say holds for all of them.

// Bounds of a pack. A single event may be larger than MaxPackBytes; it goes alone.
const (
	MaxPackBytes  = 128 << 10
	MaxPackEvents = 320
)

// ErrPack is wrapped by every error of [SplitPack]: the pack has more events, or more bytes, than a
// pack may. No line is returned.
var ErrPack = errors.New("not a pack of events")

// JoinPack makes a pack of events. No line may contain a line break.
func JoinPack(lines [][]byte) []byte { return bytes.Join(lines, []byte{'\n'}) }

// SplitPack returns the lines of a pack, at least one. They are parts of data. Whether a line is an
// event is not looked at.
func SplitPack(data []byte) ([][]byte, error) {
	more := bytes.Count(data, []byte{'\n'})
	switch {
	case more >= MaxPackEvents:
		return nil, fmt.Errorf("%w: it has more than %d lines", ErrPack, MaxPackEvents)
	case more > 0 && len(data) > MaxPackBytes:
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", ErrPack, len(data), MaxPackBytes)
	}
	lines := make([][]byte, 0, more+1)
	for {
		line, rest, found := bytes.Cut(data, []byte{'\n'})
		lines = append(lines, line[:len(line):len(line)])
		if !found {
			return lines, nil
		}
		data = rest
	}
}
