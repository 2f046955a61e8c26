package feed

import (
	"hash/fnv"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
)

// Repository is the identifier of the repository that an event belongs to: that of its d tag, or of
// the first address it names. It is empty if the event names none.
func Repository(ev *nostr.Event) string {
	for _, tag := range ev.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "d":
			return tag[1]
		case "a", "A":
			if parts := strings.SplitN(tag[1], ":", 3); len(parts) == 3 {
				return parts[2]
			}
		}
	}
	return ""
}

// Homes are the relays that have a repository: so many of those after the first, by their index.
// They follow from the identifier alone, one at random and others at even distances from it, so
// that two relays have few repositories in common.
func Homes(repository string, relays, copies int) []int {
	others := relays - 1
	h := fnv.New32a()
	h.Write([]byte(repository))
	first, step := int(h.Sum32()%uint32(others)), 1+int(h.Sum32()>>16)%max(1, others/copies)
	homes := make([]int, copies)
	for i := range homes {
		homes[i] = 1 + (first+i*step)%others
	}
	return homes
}

// OddRelays are the relays among a hundred that do not do as they are asked, by their index; see
// [Behaviour].
var OddRelays = map[int]string{
	3: "slow", 14: "limited", 27: "refusing", 31: "forged", 46: "promising", 58: "silent", 63: "shut", 72: "noticing", 85: "slow",
	94: "limited",
}

// Behaviour is that of an odd relay. What it has comes only from those that are slow or limited.
func Behaviour(oddity string) outside.Behaviour {
	switch oddity {
	case "slow":
		return outside.Behaviour{Delay: 2 * time.Second}
	case "limited":
		return outside.Behaviour{Page: 20, Subscriptions: 4, Filters: 3, NoNegentropy: true}
	}
	return outside.Behaviour{Trick: outside.Tricks[oddity]}
}

// Delivers reports whether what a relay has comes from it, by its index.
func Delivers(i int) bool {
	return OddRelays[i] == "" || OddRelays[i] == "slow" || OddRelays[i] == "limited"
}
