{{/* The revision as names end with it: the default one has none there, as in istiod's own objects. */}}
{{- define "initless.revision" -}}
{{ ternary "" .Values.revision (eq .Values.revision "default") }}
{{- end }}

{{/* Name of everything the injector of this revision has. */}}
{{- define "initless.injector" -}}
initless-injector{{ with include "initless.revision" . }}-{{ . }}{{ end }}
{{- end }}

{{- define "initless.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "initless.labels" -}}
{{- with .name }}
app.kubernetes.io/name: {{ . }}
{{- end }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/part-of: initless
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "initless.podLabels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/part-of: initless
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
sidecar.istio.io/inject: "false"
{{- end }}

{{- define "initless.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* The subject of a binding. */}}
{{- define "initless.subject" -}}
- kind: ServiceAccount
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* Name of the webhook configuration of a revision tag. */}}
{{- define "initless.tag" -}}
initless-revision-tag-{{ . }}
{{- end }}

{{/* Where the agent may run: GKE's gVisor nodes keep a pod's network inside the sandbox, out of reach of the node. */}}
{{- define "initless.agentAffinity" -}}
{{- if .Values.agent.affinity }}
affinity:
  {{- toYaml .Values.agent.affinity | nindent 2 }}
{{- else if eq .Values.platform "gke" }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: sandbox.gke.io/runtime
              operator: DoesNotExist
{{- end }}
{{- end }}

{{/* One entry of a webhook configuration: which namespaces and pods it selects, as lists of key, operator, values. */}}
{{- define "initless.webhook" -}}
- name: {{ .entry }}.injector.initless.io
  admissionReviewVersions: [v1]
  clientConfig:
    service:
      name: {{ include "initless.injector" .root }}
      namespace: {{ .root.Release.Namespace }}
      path: {{ .root.Values.injector.webhook.path }}
      port: 443
  failurePolicy: Fail
  reinvocationPolicy: {{ .root.Values.injector.webhook.reinvocationPolicy }}
  sideEffects: None
  {{- if ne (int .root.Values.injector.webhook.timeoutSeconds) 10 }}
  timeoutSeconds: {{ .root.Values.injector.webhook.timeoutSeconds }} # 10 is what the API server takes without it
  {{- end }}
  rules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
  namespaceSelector:
    matchExpressions:
      {{- include "initless.expressions" .namespaces | nindent 6 }}
  objectSelector:
    matchExpressions:
      {{- include "initless.expressions" .pods | nindent 6 }}
{{- end }}

{{- define "initless.expressions" -}}
{{- range $index, $found := . }}
{{- if $index }}
{{ end -}}
- key: {{ first $found }}
  operator: {{ index $found 1 }}
  {{- with slice $found 2 }}
  values: {{ toJson . }}
  {{- end }}
{{- end }}
{{- end }}
