package hunt

import (
	"cmp"
	"iter"
	"math/rand/v2"
	"slices"

	"tendril.dev/services/purgatory/repostate"
)

// maxRequests bounds the requests of one attempt. Anybody may announce an identifier, with as many
// URLs as will fit, so that there can be more of them than are ever asked.
const maxRequests = 1000

// lane is what is asked for one request after the other: what one repository misses, for one who
// pays for it.
type lane struct{ owner, payer string }

func laneOf(w repostate.Want) lane { return lane{w.Owner, w.Payer} }

// requests returns what may be asked, each once: first every want's near URLs, then every other URL
// for every want. Where that is more than an attempt may make, it begins with any of the wants and
// any of the URLs, so that each gets its turn.
func requests(wants []repostate.Want, sources []repostate.Source) iter.Seq2[lane, request] {
	if len(wants)*len(sources) > maxRequests {
		wants, sources = turned(wants), turned(sources)
		for i, w := range wants {
			wants[i].Near = turned(w.Near)
		}
	}
	return func(yield func(lane, request) bool) {
		type key struct {
			lane
			url string
		}
		made := map[key]bool{}
		ask := func(w repostate.Want, s repostate.Source) bool {
			at := laneOf(w)
			if made[key{at, s.URL}] {
				return true
			}
			made[key{at, s.URL}] = true
			host := HostOf(s.URL)
			r := request{url: s.URL, host: host, domain: "host " + domainOf(host), by: cmp.Or(s.Client, s.Author)}
			return len(made) <= maxRequests && yield(at, r)
		}
		for _, w := range wants {
			for _, s := range w.Near {
				if !ask(w, s) {
					return
				}
			}
		}
		for _, s := range sources {
			for _, w := range wants {
				if !ask(w, s) {
					return
				}
			}
		}
	}
}

// turned is a list begun somewhere in its middle.
func turned[T any](list []T) []T {
	if len(list) == 0 {
		return list
	}
	at := rand.IntN(len(list))
	return slices.Concat(list[at:], list[:at])
}
