package policy

import (
	"tendril.dev/lib/bans"
	"tendril.dev/lib/held"
	"tendril.dev/proto"
)

// Decision is what one candidate comes to.
type Decision struct {
	Outcome proto.Outcome
	Message string // of the OK, with its NIP-01 prefix

	// Set where Outcome is Rejected.
	Reason   string   // for metrics: one word of a bounded set, where messages are sentences
	Missing  []string // keys that would heal the rejection, see [Arrivals]
	Remember bool     // keep its id, so that it is not fetched again
	Park     bool     // keep it whole for a while: what it misses may be about to come
	RetryAt  int64    // when it may be offered again, in seconds since 1970; 0: that is not known

	// Changes of the held events; an entry is never in both.
	Hold []*held.Entry // to be written
	Drop []Dropped     // to be deleted

	// Floors are where versions stood that a deletion request names by their ids, see
	// proto.HeaderFloor.
	Floors []proto.Floor

	// Request is what was decided of an accepted request of an author.
	Request proto.Request

	// Removes: the event was accepted, and leaves the log. Renews: it is a request that stays in the
	// log now, and takes another place in it.
	Removes, Renews bool

	// Next are candidates to be decided right after this one, because of it.
	Next []*Candidate

	dropped map[string]bool   // keys of Drop
	leaves  map[string]string // ids of accepted announcements that go or move away, and their identifiers
}

// Dropped is a held event that goes.
type Dropped struct {
	Entry    *held.Entry
	Remember string // reason to remember it by, so that it is not fetched again; "" and [Evicted]: forgotten
}

// Evicted is told of an event that had to make room.
const Evicted = "evicted"

// Reasons that held events are remembered by.
const (
	RememberExpired    = "previously expired"
	rememberSuperseded = "superseded"
	rememberDeleted    = "deleted by its author"
)

// messageNewer is given by more than one rule.
const messageNewer = "duplicate: a newer event is in its place, or one as old of lower id"

// MayChange reports whether a rejection is for something that may change: what the event misses may
// come, and what is crowded or over a budget may have room again.
func (d Decision) MayChange() bool {
	return d.Outcome == proto.Rejected && (len(d.Missing) > 0 || d.Reason == "crowded" || d.RetryAt > 0)
}

// Ends reports whether an accepted announcement goes with it, or moves away.
func (d Decision) Ends() bool { return len(d.leaves) > 0 }

// drop adds entries to what is deleted; nil is none. remember is the reason to remember them by, or
// "".
func (d *Decision) drop(remember string, entries ...*held.Entry) {
	if d.dropped == nil {
		d.dropped = map[string]bool{}
	}
	for _, e := range entries {
		if e != nil && !d.dropped[e.Key] {
			d.dropped[e.Key] = true
			d.Drop = append(d.Drop, Dropped{Entry: e, Remember: remember})
		}
	}
}

func accepted() Decision { return Decision{Outcome: proto.Accepted} }

func duplicate(message string) Decision { return Decision{Outcome: proto.Duplicate, Message: message} }

// rejected is for good: the event is remembered.
func rejected(reason, message string) Decision {
	return Decision{Outcome: proto.Rejected, Reason: reason, Message: message, Remember: true}
}

func invalid(err error) Decision { return rejected("invalid", "invalid: "+err.Error()) }

// blocked rejects what is banned. It is remembered only where the settings say so: another ban may
// end any time.
func blocked(ban *bans.Ban) Decision {
	if ban.Fixed {
		return rejected("blacklisted", ban.Message())
	}
	return forgotten("banned", ban.Message())
}

// forgotten rejects what may be right another time, or what no relay keeps.
func forgotten(reason, message string) Decision {
	return Decision{Outcome: proto.Rejected, Reason: reason, Message: message}
}

// healable rejects an event whose reason may go away when one of the missing keys arrives.
func healable(reason, message string, missing ...string) Decision {
	d := rejected(reason, message)
	d.Missing, d.Park = missing, true
	return d
}
