package session

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Shape stands for the form of the filters that items become. What was confirmed by filters of
// another form is not confirmed by these.
func Shape() string {
	one := Set{First: true, Full: []string{"30617:aa:x"}, States: []string{"x"}, Roots: []string{"bb"},
		Replies: []string{"cc"}, People: []string{"dd"}}
	text, _ := json.Marshal(Groups(one)) // filters can always be written
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
