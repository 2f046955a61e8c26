// Package indexcopy brings the event index of a running process to one that starts, so that this
// need not read the whole log (docs/architecture.md, An index is copied).
//
// A [Giver] answers the micro service grasp.query.index of lib/proto: it makes a checkpoint of its
// index, which costs a flush and some links, and gives the files of it chunk by chunk, to one taker
// at a time and at a bounded rate. A [Taker] asks everybody at once, takes the files of the best
// offer, and lets eventdb check them and put them in the place of its own. Where anything fails it
// asks the next, and in the end the log is read as it would have been without.
package indexcopy

import (
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"time"

	"tendril.dev/proto"
)

const (
	// idle is how long a taker may ask for nothing before its copy ends.
	idle = 30 * time.Second
	// slowest and grace bound how long a copy may take: so many bytes a second, and so much more.
	// Whoever is slower keeps others from theirs, and files on the giver's disk.
	slowest = 1 << 20
	grace   = time.Minute
	// window is how many chunks a taker asks for at once: enough for a network with a round trip of
	// some milliseconds, and little enough for what else goes over the giver's connection.
	window = 8
	// sumBytes is the length of the checksum before a chunk.
	sumBytes = 4
	// nameBytes bounds names that go into the log.
	nameBytes = 100
)

// within is how long a copy of so many bytes may take.
func within(bytes int64) time.Duration {
	return grace + time.Duration(bytes/slowest)*time.Second
}

// fileName is what the files of an index are called: tables, the manifest, the options, and the
// empty files that say which manifest and which format are in use.
var fileName = regexp.MustCompile(`^(?:[0-9]{6,20}\.sst|(MANIFEST)-[0-9]{6,20}|(OPTIONS)-[0-9]{6,20}|` +
	`(marker\.manifest)\.[0-9]{6}\.MANIFEST-[0-9]{6,20}|(marker\.format-version)\.[0-9]{6}\.[0-9]{3})$`)

// errBad is wrapped by what is wrong with a message.
var errBad = errors.New("not as agreed")

// checkCopy checks the list of files of a copy that may take up to most bytes, and gives their sum.
func checkCopy(c proto.IndexCopy, most int64) (total int64, err error) {
	seen, ones := map[string]bool{}, [5]int{}
	for _, f := range c.Files {
		found := fileName.FindStringSubmatch(f.Name)
		switch {
		case found == nil:
			return 0, fmt.Errorf("%w: a file named %.100q", errBad, f.Name)
		case seen[f.Name]:
			return 0, fmt.Errorf("%w: two files named %s", errBad, f.Name)
		case f.Bytes < 0 || f.Bytes > most-total:
			return 0, fmt.Errorf("%w: larger than the %d bytes that an index of this log may have", errBad, most)
		}
		seen[f.Name] = true
		total += f.Bytes
		for n := 1; n < len(found); n++ {
			if found[n] != "" {
				ones[n]++
			}
		}
	}
	for n, name := range []string{1: "manifest", 2: "options", 3: "marker of the manifest", 4: "marker of the format"} {
		if n > 0 && ones[n] != 1 {
			return 0, fmt.Errorf("%w: %d files for the %s, want 1", errBad, ones[n], name)
		}
	}
	if c.Copy == "" || len(c.Copy) > nameBytes {
		return 0, fmt.Errorf("%w: a copy named %.100q", errBad, c.Copy)
	}
	return total, nil
}

// chunks is how many chunks a file of so many bytes has.
func chunks(bytes int64) int { return int((bytes + proto.IndexChunk - 1) / proto.IndexChunk) }

// chunkAt returns the offset and the length of a chunk of a file; false: the file has no such
// chunk.
func chunkAt(bytes int64, chunk int) (offset int64, length int, ok bool) {
	if chunk < 0 || chunk >= chunks(bytes) {
		return 0, 0, false
	}
	offset = int64(chunk) * proto.IndexChunk
	return offset, int(min(bytes-offset, proto.IndexChunk)), true
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealed puts the checksum into the first bytes of a message whose others are the chunk.
func sealed(message []byte) []byte {
	sum := crc32.Checksum(message[sumBytes:], castagnoli)
	message[0], message[1], message[2], message[3] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
	return message
}

// opened returns the chunk of a message, which must be of a length.
func opened(message []byte, length int) ([]byte, error) {
	if length < 0 || len(message) != sumBytes+length {
		return nil, fmt.Errorf("%w: a chunk of %d bytes, want %d", errBad, len(message)-sumBytes, length)
	}
	sum := uint32(message[0])<<24 | uint32(message[1])<<16 | uint32(message[2])<<8 | uint32(message[3])
	if chunk := message[sumBytes:]; crc32.Checksum(chunk, castagnoli) == sum {
		return chunk, nil
	}
	return nil, fmt.Errorf("%w: a chunk with another checksum", errBad)
}
