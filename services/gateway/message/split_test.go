package message

import (
	"encoding/json"
	"slices"
	"testing"
)

// FuzzInside compares with encoding/json, for arrays, and for objects whose names differ.
func FuzzInside(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[ ]`, `["a","b"]`, ` [ 1 , -2.5e3,true,null ] `, `[[1,[2]],{"a":[1]},"]"]`, `["\"","\\","\\\"",""]`,
		`["a\\\\",",",":"]`, `{"a":1,"b" : [2] ,"c":{"d":"}"}}`, `{"\\":"\"","]":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var raw json.RawMessage
		var array []json.RawMessage
		var object map[string]json.RawMessage
		switch {
		case json.Unmarshal(data, &raw) != nil:
			return
		case raw[0] == '[' && json.Unmarshal(data, &array) == nil:
			got := slices.Collect(inside(raw))
			if !slices.EqualFunc(got, array, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
				t.Fatalf("%q: %q", array, got)
			}
		case raw[0] == '{' && json.Unmarshal(data, &object) == nil:
			got := slices.Collect(inside(raw))
			if len(got)%2 != 0 || len(got) < 2*len(object) {
				t.Fatalf("%q: %q", object, got)
			}
			if len(got) > 2*len(object) {
				return // a name stands twice
			}
			for pair := range slices.Chunk(got, 2) {
				var name string
				if json.Unmarshal(pair[0], &name) != nil || string(object[name]) != string(pair[1]) {
					t.Fatalf("%q: %q", object, got)
				}
			}
		}
	})
}
