package main

import (
	"fmt"
	"maps"
	"slices"

	"tendril.dev/proto"
)

const (
	// mostBehind is how many messages of a stream a process may still have to read before that
	// counts as degraded.
	mostBehind = 1000
	// leastFree is the part of a disk that must be free.
	leastFree = 0.05
	// mostFull is the part of its bound that the log may have.
	mostFull = 0.9
)

// degraded says what is wrong with a system, a sentence each. Relays count only together: that one
// of them fails is its own affair.
func (r *report) degraded() (sentences []string) {
	say := func(format string, values ...any) { sentences = append(sentences, fmt.Sprintf(format, values...)) }
	if len(r.Processes) == 0 {
		say("no process tells how it stands")
	}
	if r.Writer.Writer == "" {
		say("no writer: events are taken in and wait")
	}
	if missing := r.Shards[none]; missing > 0 {
		say("%d of %d shards have no worker: their repositories are not served", missing, proto.Shards)
	}
	var longest int64
	for _, p := range r.Processes {
		longest = max(longest, p.Counts["log_max_bytes"])
		for _, name := range slices.Sorted(maps.Keys(p.Troubles)) {
			say("%s: %s: %s", p.Process, name, p.Troubles[name])
		}
		for _, d := range p.Disks {
			if d.Bytes > 0 && float64(d.Free) < leastFree*float64(d.Bytes) {
				say("%s: the disk of %s has %s free of %s", p.Process, d.Folder, size(d.Free), size(d.Bytes))
			}
		}
		for _, read := range p.Read {
			if last := r.Streams[read.Stream].Last; last > read.Seq+mostBehind {
				say("%s: the projection %s is %d messages behind %s", p.Process, read.Name, last-read.Seq, read.Stream)
			}
		}
	}
	if log := r.Streams[proto.StreamEvents]; longest > 0 && float64(log.Bytes) > mostFull*float64(longest) {
		say("the log has %s of at most %s", size(log.Bytes), size(longest))
	}
	failing := 0
	for _, relay := range r.Relays {
		if relay.fails() {
			failing++
		}
	}
	if failing > 0 && failing == len(r.Relays) {
		say("none of %d relays can be reached", failing)
	}
	return sentences
}
