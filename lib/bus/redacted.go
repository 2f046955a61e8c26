package bus

import (
	"net/url"
	"strings"
)

// Redacted returns NATS URLs, comma-separated, without what opens the door: passwords and tokens.
func Redacted(urls string) string {
	var shown []string
	for given := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(given))
		if err != nil {
			shown = append(shown, "(a URL that cannot be read)")
			continue
		}
		if u.User != nil {
			u.User = url.User("xxxxx")
		}
		shown = append(shown, u.String())
	}
	return strings.Join(shown, ", ")
}
