package hunt

import (
	"iter"
	"math/rand/v2"
	"slices"
)

// maxRequests bounds the requests of one attempt. Anybody may announce an identifier, with as many URLs as will fit, so that there can be
// more of them than are ever asked.
const maxRequests = 1000

// request is one server that is asked for what one repository misses: what the limits of servers count.
type request struct{ owner, url string }

// requests gives what may be asked, each once: first every want's near URLs, then every other URL for every want. Where that is more than
// an attempt may make, or elsewhere says so, it begins with any of the wants and any of the URLs, so that each gets its turn.
func (p Prospect) requests(elsewhere bool) iter.Seq[request] {
	wants, urls := slices.Clone(p.Wants), p.URLs
	if elsewhere || len(wants)*len(urls) > maxRequests {
		wants, urls = turned(wants), turned(urls)
		for i, w := range wants {
			wants[i].Near = turned(w.Near)
		}
	}
	return func(yield func(request) bool) {
		made := map[request]bool{}
		ask := func(owner, url string) bool {
			r := request{owner, url}
			if made[r] {
				return true
			}
			made[r] = true
			return len(made) <= maxRequests && yield(r)
		}
		for _, w := range wants {
			for _, url := range w.Near {
				if !ask(w.Owner, url) {
					return
				}
			}
		}
		for _, url := range urls {
			for _, w := range wants {
				if !ask(w.Owner, url) {
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

// want gives what an owner's repository misses, if it still does.
func (p Prospect) want(owner string) (Want, bool) {
	i := slices.IndexFunc(p.Wants, func(w Want) bool { return w.Owner == owner })
	if i < 0 {
		return Want{}, false
	}
	return p.Wants[i], true
}
