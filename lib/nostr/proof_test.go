package nostr_test

import (
	"encoding/base64"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// TestProofsNameTheRoot of a repository, as it is written, or of the service.
func TestProofsNameTheRoot(t *testing.T) {
	t.Parallel()
	who := fixture.NewPerson()
	for _, c := range fixture.Rows(`
		https://a.example/npub1x/p.git                                      | https://a.example/npub1x/p.git
		https://A.example/npub1x/p.git/info/refs?service=x                  | https://a.example/npub1x/p.git
		https://a.example:8443/base/npub1x/a%2Fb.git?tag=v1                 | https://a.example:8443/base/npub1x/a%2Fb.git
		https://a.example/npub1x/a/b.git                                    | https://a.example/
		https://a.example/base/npub1x                                       | https://a.example/base/
		https://a.example                                                   | https://a.example/
		ssh://a.example/npub1x/p.git                                        |
		https://u:p@a.example/npub1x/p.git                                  |
	`) {
		proof, err := NewProof(c[0], func(ev *Event) error { return ev.Sign(who.Secret) })
		data, _ := base64.StdEncoding.DecodeString(proof)
		ev := new(Event)
		if err == nil {
			err = ev.UnmarshalJSON(data)
		}
		if (err == nil) != (c[1] != "") || err == nil && (ev.Tags.Find("u")[1] != c[1] || ev.Tags.Find("method")[1] != "GET" || !Signed(ev)) {
			t.Errorf("%s: %v, %v", c[0], ev.Tags, err)
		}
	}
}
