package pages

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/obs"
)

// A page of git data shows what the index has, and what the worker reads at the objects that the
// state event names. So the index alone says whether a page is still the one that a client has, and
// the worker is not asked. A page is given such a tag only if the worker's branches and tags were
// those of the state: after a push they are ahead of it for a moment, and may lag behind where
// maintainers change.

// agesPerDoubling is how often the tag of a page changes while its newest activity becomes twice as
// old: so often the ages on the page are written anew.
const agesPerDoubling = 16

// version is the tag (ETag) of a page about a repository, by what the index says.
func (p *Pages) version(r *http.Request, repo *repository) string {
	known := *repo
	known.Branches, known.Tags = nil, nil // which the sum stands for
	_, icon := p.now()
	age := agesPerDoubling * math.Log2(max(time.Since(repo.active), time.Second).Seconds())
	// Templates show exported fields, and JSON has the same.
	text, err := json.Marshal(struct {
		Build, Page, Icon, Refs string
		Age                     int
		Site                    site
		Repository              repository
	}{
		p.build, r.URL.RequestURI(), icon, repo.refsSum, int(age), p.about(), known,
	})
	if err != nil {
		return "" // which is the tag of no page
	}
	return etag(text)
}

// build names the program and its templates.
func build() string { return obs.Version() + obs.Commit() + source }

// etag names a content.
func etag(content []byte) string {
	sum := sha256.Sum256(content)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
}

// unchanged tells a client that it has the page of a tag, if it has.
func unchanged(w http.ResponseWriter, r *http.Request, tag string) bool {
	// A proxy that packs a page makes its tag a weak one.
	given := strings.ReplaceAll(r.Header.Get("If-None-Match"), "W/", "")
	if tag == "" || !slices.Contains(strings.Split(strings.ReplaceAll(given, " ", ""), ","), tag) {
		return false
	}
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", askAgain)
	h.Add("Vary", "Accept-Encoding")
	w.WriteHeader(http.StatusNotModified)
	return true
}

const (
	// askAgain tells caches to ask each time whether a page has changed, and forEver that a file of a
	// commit never does. Shared caches do not keep that: what is banned must not be served by them.
	askAgain, forEver = "no-cache", "private, max-age=31536000, immutable"
)
