package feed

import (
	"hash/fnv"
	"strings"

	"tendril.dev/lib/nostr"
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
