package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxEnvFile bounds an env file, in bytes.
const maxEnvFile = 1 << 20

// assignment is the beginning of a line that sets a variable: NAME=, with or without "export".
var assignment = regexp.MustCompile(`^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*`)

// reference is a variable in a value: $NAME or ${NAME}. With a backslash before it, it is text.
var reference = regexp.MustCompile(`\\\$|\$\{[A-Za-z_][A-Za-z0-9_]*\}|\$[A-Za-z_][A-Za-z0-9_]*`)

// parseDotEnv reads the text of an env file as GRASP servers and shells read it:
//
//   - NAME=value or export NAME=value, one a line; spaces around both are dropped.
//   - A '#' begins a comment: at the start of a line, at the start of a value, and after a space.
//   - In 'single quotes' everything is text. In "double quotes" \n, \r, \t, \", \\ and \$ are escapes.
//     Both may go over several lines.
//   - $NAME and ${NAME} stand for the environment's value (lookup), or else that of an earlier line;
//     not in single quotes.
//   - A byte order mark and carriage returns before newlines are dropped.
//
// Of several lines that set one name the first that is not empty counts; the others are told of in
// warnings. An error says which line is wrong and quotes nothing: the file may hold secrets.
func parseDotEnv(text string, lookup func(name string) (string, bool)) (values map[string]string, warnings []string, err error) {
	values = map[string]string{}
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n")
	expand := func(s string) string {
		return reference.ReplaceAllStringFunc(s, func(found string) string {
			if found == `\$` {
				return "$"
			}
			name := strings.Trim(found, "${}")
			if value, ok := lookup(name); ok {
				return value
			}
			return values[name]
		})
	}
	for line := 1; text != ""; {
		start := assignment.FindStringSubmatch(text)
		if start == nil {
			before, after, _ := strings.Cut(text, "\n")
			if before = strings.TrimSpace(before); before != "" && !strings.HasPrefix(before, "#") {
				return nil, nil, fmt.Errorf("line %d is not NAME=value", line)
			}
			text = after
			line++
			continue
		}
		value, after, problem := cutValue(text[len(start[0]):], expand)
		if problem != nil {
			return nil, nil, fmt.Errorf("line %d: %w", line, problem)
		}
		name := start[1]
		switch {
		case values[name] == "":
			values[name] = value
		case value != "" && value != values[name]:
			warnings = append(warnings, fmt.Sprintf("%.64s is set again in line %d of the env file; the first value counts", name, line))
		}
		line += strings.Count(text[:len(text)-len(after)], "\n")
		text = after
	}
	return values, warnings, nil
}

// cutValue reads the value at the start of text, to the end of its line. after begins with the next
// line.
func cutValue(text string, expand func(string) string) (value, after string, err error) {
	if text != "" && (text[0] == '\'' || text[0] == '"') {
		return cutQuoted(text, expand)
	}
	line, after, _ := strings.Cut(text, "\n")
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
			break
		}
	}
	return expand(strings.TrimSpace(line)), after, nil
}

// cutQuoted reads a value in quotes. Only a comment may follow it on its line.
func cutQuoted(text string, expand func(string) string) (value, after string, err error) {
	quote := text[0]
	end := 1
	for end < len(text) && text[end] != quote {
		if quote == '"' && text[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(text) {
		return "", "", errors.New("a quote is not closed")
	}
	value = text[1:end]
	rest, after, _ := strings.Cut(text[end+1:], "\n")
	if rest = strings.TrimSpace(rest); rest != "" && rest[0] != '#' {
		return "", "", errors.New("something follows the closing quote")
	}
	if quote == '"' {
		value = unescape(value, expand)
	}
	return value, after, nil
}

// escaped is a pair of a backslash and what it stands before, or text without a backslash.
var escaped = regexp.MustCompile(`\\[\\"nrt]`)

// unescape reads the escapes of double quotes. Text between escaped backslashes is expanded on its
// own, so that \\$NAME is a backslash and a value.
func unescape(s string, expand func(string) string) string {
	var b strings.Builder
	for s != "" {
		at := escaped.FindStringIndex(s)
		if at == nil {
			b.WriteString(expand(s))
			break
		}
		b.WriteString(expand(s[:at[0]]))
		switch c := s[at[0]+1]; c {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		default:
			b.WriteByte(c)
		}
		s = s[at[1]:]
	}
	return b.String()
}
