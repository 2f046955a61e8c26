package known

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unique"

	"tendril.dev/proto"
)

// fetchAfter is when an event is asked for by its id, counted from when something came that it
// missed. The first time it has just been decided again if it was parked; the later ones are for a
// relay, or a worker, that was away.
var fetchAfter = [...]time.Duration{2 * time.Second, time.Minute, 10 * time.Minute}

const (
	// fetchedFor is how long after that an event is asked for that was not, because no replica was
	// the writer.
	fetchedFor = time.Hour
	// mostFetches bounds the events that are asked for. Half of the room is for those that have not
	// been asked for yet. What finds no room comes with the next daily sync: it does not count as
	// rejected any more.
	mostFetches = 10_000
)

// fetch is an event to be asked for.
type fetch struct {
	*entry
	relays unique.Handle[string] // with spaces between: URLs have none
	asked  int                   // how many of fetchAfter are over
}

func newFetch(e *entry, relays []string) *fetch {
	return &fetch{entry: e, relays: unique.Make(strings.Join(relays[:min(len(relays), proto.MaxFetchRelays)], " "))}
}

// Fetches returns which events should be asked for by id now, at most [proto.MaxFetched]. Those
// with the same relays are one message. Where there are more, each list of relays has its turn:
// many events that one arrival heals do not keep another back.
func (x *Rejected) Fetches(now time.Time) (messages []proto.Fetch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ready := map[unique.Handle[string]][]*fetch{}
	for k, f := range x.fetches {
		switch {
		case f.asked == len(fetchAfter), now.Sub(f.at) > fetchedFor, f.asked > 0 && len(x.fetches) > mostFetches/2:
			delete(x.fetches, k)
		case now.Sub(f.at) >= fetchAfter[f.asked]:
			ready[f.relays] = append(ready[f.relays], f)
		}
	}
	type place struct {
		*fetch
		rank int // among those with its relays
	}
	var turn []place
	for _, of := range ready {
		slices.SortFunc(of, func(a, b *fetch) int { return cmp.Or(cmp.Compare(a.asked, b.asked), a.at.Compare(b.at)) })
		for rank, f := range of[:min(len(of), proto.MaxFetched)] {
			turn = append(turn, place{f, rank})
		}
	}
	slices.SortFunc(turn, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.asked, b.asked), a.at.Compare(b.at))
	})
	at := map[unique.Handle[string]]int{} // of messages
	for _, f := range turn[:min(len(turn), proto.MaxFetched)] {
		for f.asked < len(fetchAfter) && now.Sub(f.at) >= fetchAfter[f.asked] {
			f.asked++
		}
		i, has := at[f.relays]
		if !has {
			i, at[f.relays] = len(messages), len(messages)
			messages = append(messages, proto.Fetch{Relays: strings.Fields(f.relays.Value())})
		}
		messages[i].IDs = append(messages[i].IDs, f.hexID())
	}
	return messages
}
