package writer

import (
	"time"

	"tendril.dev/proto"
)

// Bounds of what one commit takes.
const (
	// mostLone is how many candidates may wait at most when they are committed one by one.
	mostLone = 32
	// shortCommit is how long a commit should take that a user's or a live event may have to wait
	// for.
	shortCommit = 15 * time.Millisecond
	// leastOlder is the part of a batch that older events may always have, as a divisor: a batch
	// costs something however small it is.
	leastOlder = 8
	// urgentFor is for how long after a user's or a live candidate the next one is expected.
	urgentFor = 2 * time.Second
	// forgets is how little a new measurement counts, as a divisor.
	forgets = 8
)

// costs are what commits to the log have taken lately, as moving averages.
//
// A single message is stored with one wait for the disk. For an atomic batch the server first makes
// files of its own, and waits for the disk about seven times, however few messages there are.
type costs struct {
	lone  time.Duration // commit of a single event
	small time.Duration // of a batch of few events
	each  time.Duration // of a large batch, divided by its events
}

// firstCosts are about those of a machine with an SSD, until commits are measured.
func firstCosts() costs {
	return costs{lone: 500 * time.Microsecond, small: 5 * time.Millisecond, each: 80 * time.Microsecond}
}

// learn takes in how long the commit of so many events took.
func (c *costs) learn(events int, took time.Duration) {
	switch {
	case events == 0:
	case events == 1:
		c.lone = average(c.lone, took)
	case events <= 2*mostLone:
		c.small = average(c.small, took)
	default:
		c.each = average(c.each, took/time.Duration(events))
	}
}

// average moves an average towards a new value. A value that is much larger, because the machine
// stood still, counts as four times the average.
func average(of, value time.Duration) time.Duration {
	return max(time.Microsecond, of+(min(value, 4*of)-of)/forgets)
}

// few reports whether so many candidates are committed one by one: where that takes no longer than
// to commit them together.
func (c costs) few(waiting, most int) bool {
	return waiting <= most && time.Duration(waiting)*c.lone <= c.small
}

// older is how many older events a batch of at most so many may have while there are users' or live
// events: as many as keep its commit short.
func (c costs) older(most int) int {
	return min(most, max(1, most/leastOlder, int(shortCommit/c.each)))
}

// traffic is what the writer knows of urgent candidates, those of users and live ones, when it
// makes a batch.
type traffic struct {
	recent bool // some came lately
	wait   bool // some wait now
	flying bool // a batch that older ones should wait for is being committed
	since  int  // how many were taken since a batch last had older events
}

// mayHaveOlder reports whether a batch may have older events. While there are urgent ones, older
// ones are decided neither during a commit of others nor during one of urgent ones: who comes
// during a commit goes next, in a commit of its own, and not together with older events that were
// decided before. So that older events come forward all the same, no more than [mostLone] urgent
// ones go before them.
func (t traffic) mayHaveOlder() bool {
	return !t.recent || t.since >= mostLone || !t.flying && !t.wait
}

// isUrgent reports whether somebody waits for the events of a lane as they happen.
func isUrgent(lane proto.Lane) bool { return lane == proto.LaneUser || lane == proto.LaneSyncLive }
