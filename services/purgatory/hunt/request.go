package hunt

import (
	"iter"
	"math/rand/v2"
	"slices"

	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/throttle"
)

// maxRequests bounds the requests of one attempt. Anybody may announce an identifier, with as many
// URLs as will fit, so that there can be more of them than are ever asked.
const maxRequests = 1000

// request is one server that is asked for what one repository misses: what the limits of servers
// count.
type request struct {
	owner string
	dossier.Source
}

// key is what a request is made once for: repository and URL, whoever named it.
type key struct{ owner, url string }

// who is on whose behalf the request is made.
func (r request) who() throttle.Who { return throttle.Who{Author: r.Author, Client: r.Client} }

func (r request) key() key { return key{r.owner, r.URL} }

// requests returns what may be asked, each once: first every want's near URLs, then every other URL
// for every want. Where that is more than an attempt may make, or elsewhere says so, it begins with
// any of the wants and any of the URLs, so that each gets its turn.
func (p Prospect) requests(elsewhere bool) iter.Seq[request] {
	wants, sources := slices.Clone(p.Wants), p.Sources
	if elsewhere || len(wants)*len(sources) > maxRequests {
		wants, sources = turned(wants), turned(sources)
		for i, w := range wants {
			wants[i].Near = turned(w.Near)
		}
	}
	return func(yield func(request) bool) {
		made := map[key]bool{}
		ask := func(owner string, at dossier.Source) bool {
			r := request{owner, at}
			if made[r.key()] {
				return true
			}
			made[r.key()] = true
			return len(made) <= maxRequests && yield(r)
		}
		for _, w := range wants {
			for _, at := range w.Near {
				if !ask(w.Owner, at) {
					return
				}
			}
		}
		for _, at := range sources {
			for _, w := range wants {
				if !ask(w.Owner, at) {
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

// want returns what an owner's repository misses, if it still does.
func (p Prospect) want(owner string) (dossier.Want, bool) {
	i := slices.IndexFunc(p.Wants, func(w dossier.Want) bool { return w.Owner == owner })
	if i < 0 {
		return dossier.Want{}, false
	}
	return p.Wants[i], true
}
