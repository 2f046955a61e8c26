package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseDotEnv(t *testing.T) {
	t.Parallel()
	environ := map[string]string{"HOME": "/home/ann", "EMPTY": ""}
	lookup := func(name string) (string, bool) { v, ok := environ[name]; return v, ok }
	for name, c := range map[string]struct {
		text string
		want map[string]string
	}{
		"plain":                      {"A=b\nC=d", map[string]string{"A": "b", "C": "d"}},
		"export":                     {"export A=b\n  export\tB=c", map[string]string{"A": "b", "B": "c"}},
		"a name that begins so":      {"exported=b", map[string]string{"exported": "b"}},
		"spaces around":              {" A = b \n", map[string]string{"A": "b"}},
		"spaces within":              {"A=My GRASP relay", map[string]string{"A": "My GRASP relay"}},
		"single quotes":              {`A='b "c" $HOME \n # d'`, map[string]string{"A": `b "c" $HOME \n # d`}},
		"double quotes":              {`A="b 'c' \"d\" \\ \$HOME # e"`, map[string]string{"A": `b 'c' "d" \ $HOME # e`}},
		"newline escape":             {`A="b\nc"`, map[string]string{"A": "b\nc"}},
		"several lines":              {"A=\"b\nc\"\nD='e\nf'\n", map[string]string{"A": "b\nc", "D": "e\nf"}},
		"an apostrophe":              {"A=Alice's relay", map[string]string{"A": "Alice's relay"}},
		"empty":                      {"A=\nB=''\nC=\"\"\nD=d", map[string]string{"A": "", "B": "", "C": "", "D": "d"}},
		"comments":                   {"# x\n  # y=z\nA=b # c # d\nB=\"c\" # d\nC=#d\nD=  # e\n", map[string]string{"A": "b", "B": "c", "C": "", "D": ""}},
		"a # within":                 {"A=b#c", map[string]string{"A": "b#c"}},
		"carriage returns":           {"A=b\r\nB='c'\r\n# x\r\n\r\nC=\r\n", map[string]string{"A": "b", "B": "c", "C": ""}},
		"byte order mark":            {"\ufeffA=b", map[string]string{"A": "b"}},
		"environment":                {"A=$HOME/git\nB=\"${HOME}/x\"\nC=${EMPTY}c", map[string]string{"A": "/home/ann/git", "B": "/home/ann/x", "C": "c"}},
		"earlier lines":              {"A=b\nC=${A}c\nD=$NOWHERE.", map[string]string{"A": "b", "C": "bc", "D": "."}},
		"the environment goes first": {"HOME=/x\nA=$HOME", map[string]string{"HOME": "/x", "A": "/home/ann"}},
		"a $ that is text":           {"A=costs $5\nB=\\$HOME\nC=\"a\\\\$HOME\"", map[string]string{"A": "costs $5", "B": "$HOME", "C": `a\/home/ann`}},
		"a URL with credentials":     {"A=nats://u:p=w@host:4222?x=#y", map[string]string{"A": "nats://u:p=w@host:4222?x=#y"}},
		"nothing":                    {"", map[string]string{}},
	} {
		got, warnings, err := parseDotEnv(c.text, lookup)
		if err != nil || !maps.Equal(got, c.want) || len(warnings) > 0 {
			t.Errorf("%s: %q, %q, %v", name, got, warnings, err)
		}
	}
}

func TestTheFirstOfTwoLinesCounts(t *testing.T) {
	t.Parallel()
	got, warnings, err := parseDotEnv("A=\nA=b\nB='x\ny'\n\nA=c\nB='x\ny'\n", func(string) (string, bool) { return "", false })
	want := []string{"A is set again in line 6 of the env file; the first value counts"}
	if err != nil || got["A"] != "b" || !slices.Equal(warnings, want) {
		t.Errorf("%q, %q, %v", got, warnings, err)
	}
}

func TestBrokenEnvFilesSayWhichLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"A=b\nsecret\n":            "line 2 is not NAME=value",
		"secret: b\n":              "line 1 is not NAME=value",
		"1A=secret\n":              "line 1 is not NAME=value",
		"\n\nA=\"secret\nB=c\n":    "line 3: a quote is not closed",
		"A='b\nc'\nD='secret' e\n": "line 3: something follows the closing quote",
		"A=\"b\\\"":                "line 1: a quote is not closed",
	} {
		_, _, err := parseDotEnv(text, func(string) (string, bool) { return "", false })
		if err == nil || err.Error() != want || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// FuzzDotEnv: no text makes it fail otherwise than by an error, and what is written in single
// quotes comes out as it is.
func FuzzDotEnv(f *testing.F) {
	f.Add("A=b # c\nexport C=\"d\\n$A\"\n")
	f.Add("\ufeffA='b\nc' x")
	f.Fuzz(func(t *testing.T, text string) {
		none := func(string) (string, bool) { return "", false }
		values, _, err := parseDotEnv(text, none)
		if err != nil {
			return
		}
		var again strings.Builder
		for name, value := range values {
			if strings.ContainsAny(value, "'\r") {
				return
			}
			again.WriteString(name + "='" + value + "'\n")
		}
		if got, _, err := parseDotEnv(again.String(), none); err != nil || !reflect.DeepEqual(got, values) {
			t.Errorf("%q, %v, want %q", got, err, values)
		}
	})
}
