package intake

import (
	"github.com/nbd-wtf/go-nostr"
)

// stage is where a flight stands.
type stage int

const (
	unasked stage = iota // whether it is stored
	asked
	unchecked
	checking
	checked  // genuine, and not offered yet
	offering // somebody does that now
	offered  // and without a verdict
	ended
)

// flight is an event that is on its way: from when the first connection brings it until its
// verdict.
type flight struct {
	key     key
	event   *nostr.Event // nil: the flight has ended
	raw     []byte
	stage   stage
	twin    *flight // with the same key and another text: one of the two is forged
	signed  bool    // its signature was found right a while ago
	urgent  bool    // it was offered as live
	waiters []waiter
}

// waiter is a connection that has brought the event.
type waiter struct {
	done  func(Result)
	queue *queue
	size  int64 // of the room that is given back at the end
}

// maxTwins bounds how many texts with one key can be joined. No more than one of them is genuine,
// and who brings the others is soon cut off.
const maxTwins = 4

// flights are the events that are on their way.
type flights struct {
	of   map[key]*flight
	lone map[*flight]struct{} // that are twins too many, so that nobody joins them
}

// find returns the flight of an event with that key; nil: there is none.
func (fs *flights) find(k key, ev *nostr.Event) *flight {
	for f := fs.of[k]; f != nil; f = f.twin {
		if same(f.event, ev) {
			return f
		}
	}
	return nil
}

func (fs *flights) add(f *flight) {
	twins := 0
	for other := fs.of[f.key]; other != nil; other = other.twin {
		twins++
	}
	if twins >= maxTwins {
		fs.lone[f] = struct{}{}
		return
	}
	f.twin = fs.of[f.key]
	fs.of[f.key] = f
}

func (fs *flights) remove(f *flight) {
	delete(fs.lone, f)
	at := fs.of[f.key]
	if at == f {
		if f.twin == nil {
			delete(fs.of, f.key)
		} else {
			fs.of[f.key] = f.twin
		}
		return
	}
	for ; at != nil; at = at.twin {
		if at.twin == f {
			at.twin = f.twin
			return
		}
	}
}

func (fs *flights) all() (all []*flight) {
	for _, f := range fs.of {
		for ; f != nil; f = f.twin {
			all = append(all, f)
		}
	}
	for f := range fs.lone {
		all = append(all, f)
	}
	return all
}
