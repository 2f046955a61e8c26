// Package secrets finds secrets in the content of files: nostr secret keys, private keys in PEM,
// and tokens of services whose shape is known. It helps people who are about to publish one by
// mistake, and stops nobody who wants to: what is split, encoded or encrypted is not found.
package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	// MaxFindings is how many secrets are reported of one file.
	MaxFindings = 10

	// windowBytes is how much of a file is in memory at once.
	windowBytes = 256 << 10
	// ahead is how much of a file must be read behind the beginning of a secret to find it.
	ahead = maxPEM + longestLine
	// binaryHead is how far git looks for a byte of zero to tell a binary file.
	binaryHead = 8000
)

// Finding is a secret in a file. The secret itself is not kept, so that nobody can print it.
type Finding struct {
	Rule string // what was found, by the name of its rule: "nostr-secret-key", "github-pat"
	Line int    // where it begins, from 1
}

// Finder finds the secrets of files, one file after the other. It keeps 256 KiB of memory. The zero
// value works.
type Finder struct {
	buffer []byte
	found  []Finding
	window look
	// line is the number of the line in which the window begins, and told where in the window
	// begins what has not been reported yet.
	line, told int
}

// Find returns the secrets of a file in the order in which they begin, MaxFindings at most. It
// reads no further than it has to. Binary files have none. Its error is that of the reader; what
// was found until then is returned with it.
func (f *Finder) Find(file io.Reader) ([]Finding, error) {
	if f.buffer == nil {
		f.buffer = make([]byte, windowBytes)
	}
	f.found, f.line, f.told = nil, 1, 0
	var format format
	for n, first := 0, true; ; first = false {
		read, err := io.ReadFull(file, f.buffer[n:])
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return f.found, fmt.Errorf("read a file: %w", err)
		}
		if first {
			if format = formatOf(f.buffer[:read]); format == binary {
				return nil, nil
			}
		}
		content := f.buffer[:n+len(format.plain(f.buffer[n:n+read]))]
		if f.look(content, last); last || len(f.found) == MaxFindings {
			return f.found, nil
		}
		// What the next window needs: the rest, and the line before it.
		from := max(0, f.told-longestLine)
		f.line += bytes.Count(content[:from], newline)
		n = copy(f.buffer, content[from:])
		f.told -= from
	}
}

// look looks through a window of a file.
func (f *Finder) look(content []byte, last bool) {
	until := len(content)
	if !last {
		until = max(f.told, len(content)-ahead)
	}
	line, counted := f.line, 0
	for _, s := range f.window.through(content, f.told, until) {
		line += bytes.Count(content[counted:s.start], newline)
		counted = s.start
		finding := Finding{Rule: s.rule, Line: line}
		if n := len(f.found); n > 0 && f.found[n-1] == finding {
			continue
		}
		if f.found = append(f.found, finding); len(f.found) == MaxFindings {
			break
		}
	}
	f.told = until
}

// Find returns the secrets of a text, as [Finder.Find] does.
func Find(text []byte) []Finding {
	found, _ := new(Finder).Find(bytes.NewReader(text)) // that reader has no errors
	return found
}

// format is how the letters of a file are written.
type format int

const (
	text   format = iota // one byte for each letter of ASCII
	wide                 // UTF-16
	binary               // not at all, as git tells binary files
)

// formatOf tells the format of a file from its beginning.
func formatOf(head []byte) format {
	switch {
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")):
		return wide
	case bytes.IndexByte(head[:min(len(head), binaryHead)], 0) >= 0:
		return binary
	}
	return text
}

// plain makes the letters of ASCII of a part of a file one byte long, in place. What becomes of
// other letters does not matter: no secret has any.
func (f format) plain(part []byte) []byte {
	if f != wide {
		return part
	}
	n := 0
	for _, c := range part {
		if c != 0 {
			part[n] = c
			n++
		}
	}
	return part[:n]
}
