/** A study below its study record, by name: the loader turns names into the ids that the service gives. */
export interface DemoStudy {
  name: string;
  siteId: string;
  attributes: Attributes;
  subjects: { name: string; attributes: Attributes }[];
  organs: { subject: string; name: string; attributes: Attributes }[];
  slides: { subject: string; organ: string; fileName: string; attributes: Attributes }[];
  findings: {
    subject: string;
    organ: string;
    fileName: string;
    name: string;
    severity: string | null;
    attributes: Attributes;
  }[];
  scores: {
    subject: string;
    organ: string | null;
    name: string;
    value: number;
    unit: string;
    attributes: Attributes;
  }[];
  codeLists: Record<string, { code: string; label: string }[]>;
}

type Attributes = Record<string, string | number | boolean | null>;

/** Organs of a rat study in the terms of SEND; 47 of them are those of one sex. */
const ORGANS =
  `ADRENAL GLAND,AORTA,BONE MARROW,BONE FEMUR,BONE STERNUM,BONE JOINT STIFLE,BRAIN,CECUM,COLON,DUODENUM,EPIDIDYMIS,ESOPHAGUS,EYE,
HARDERIAN GLAND,HEART,ILEUM,JEJUNUM,KIDNEY,LACRIMAL GLAND,LARYNX,LIVER,LUNG,LYMPH NODE MANDIBULAR,LYMPH NODE MESENTERIC,MAMMARY GLAND,
MUSCLE SKELETAL,NERVE OPTIC,NERVE SCIATIC,OVARY,PANCREAS,PARATHYROID GLAND,PEYERS PATCH,PITUITARY GLAND,PROSTATE,RECTUM,
SALIVARY GLAND,SEMINAL VESICLE,SKIN,SPINAL CORD,SPLEEN,STOMACH,TESTIS,THYMUS,THYROID GLAND,TONGUE,TRACHEA,URETER,
URINARY BLADDER,UTERUS,VAGINA,ZYMBALS GLAND`
    .replaceAll('\n', '')
    .split(',');
const MALE = new Set(['EPIDIDYMIS', 'PROSTATE', 'SEMINAL VESICLE', 'TESTIS']);
const FEMALE = new Set(['OVARY', 'UTERUS', 'VAGINA', 'MAMMARY GLAND']);
/** Weights of a rat's organs in grams: mean, as a starting point for group effects. */
const WEIGHED: Record<string, number> = {
  'ADRENAL GLAND': 0.06,
  BRAIN: 2.1,
  HEART: 1.3,
  KIDNEY: 2.6,
  LIVER: 11.5,
  LUNG: 1.6,
  SPLEEN: 0.75,
  THYMUS: 0.45,
};

const LESIONS: Record<string, string[]> = {
  LIVER: ['Vacuolation, hepatocellular', 'Hypertrophy, hepatocellular', 'Necrosis, single cell'],
  KIDNEY: ['Basophilia, tubular', 'Cast, hyaline', 'Nephropathy, chronic progressive'],
  LUNG: ['Infiltrate, macrophage, alveolar', 'Inflammation, interstitial'],
  HEART: ['Cardiomyopathy', 'Infiltrate, mononuclear cell'],
  SPLEEN: ['Hematopoiesis, extramedullary, increased', 'Pigment, increased'],
};
const COMMON_LESIONS = ['Infiltrate, mononuclear cell', 'Congestion', 'Atrophy', 'Mineralization'];
const SEVERITIES = ['MINIMAL', 'MILD', 'MODERATE', 'MARKED', 'SEVERE'];

const GROUPS = [
  { code: 'V', label: 'Vehicle control', dose: 0 },
  { code: 'L', label: 'Low dose', dose: 10 },
  { code: 'M', label: 'Mid dose', dose: 30 },
  { code: 'H', label: 'High dose', dose: 100 },
  { code: 'R', label: 'High dose, recovery', dose: 100 },
] as const;

/** Numbers in [0, 1) that a seed determines: mulberry32, whose period of 2^32 is ample for a demo. */
function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A realistic 28-day rat study: the same seed gives the same study. */
export function generateStudy(seed: number, animals = 250): DemoStudy {
  const random = randomNumbers(seed);
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
  const around = (mean: number, spread: number) => mean * (1 + spread * (random() + random() - 1));
  const rounded = (value: number, digits: number) => Number(value.toFixed(digits));

  const study: DemoStudy = {
    name: `28-day oral toxicity study in the rat (demo, seed ${seed})`,
    siteId: 'DEMO-01',
    attributes: { SPECIES: 'RAT', STRAIN: 'WISTAR HAN', ROUTE: 'ORAL GAVAGE', GLPFL: 'N', DOSDUR: 'P28D' },
    subjects: [],
    organs: [],
    slides: [],
    findings: [],
    scores: [],
    codeLists: {
      MISEV: SEVERITIES.map((code) => ({ code, label: code.charAt(0) + code.slice(1).toLowerCase() })),
      SETCD: GROUPS.map(({ code, label }) => ({ code, label })),
      SEX: [
        { code: 'F', label: 'Female' },
        { code: 'M', label: 'Male' },
      ],
    },
  };

  for (let animal = 0; animal < animals; animal++) {
    const group = GROUPS[Math.floor((animal / animals) * GROUPS.length)] as (typeof GROUPS)[number];
    const sex = animal % 2 === 0 ? 'M' : 'F';
    const subject = `${GROUPS.indexOf(group) + 1}${String(animal + 1).padStart(3, '0')}`;
    study.subjects.push({
      name: subject,
      attributes: { SEX: sex, SETCD: group.code, SET: group.label, TRTDOS: group.dose, TRTDOSU: 'mg/kg/day' },
    });
    for (const [week, day] of [1, 8, 15, 22, 29].entries()) {
      const weight = around(
        (sex === 'M' ? 210 : 160) + week * (sex === 'M' ? 38 : 18) - group.dose * week * 0.08,
        0.06,
      );
      const attributes = { BWTESTCD: day === 29 ? 'TERMBW' : 'BW', VISITDY: day };
      study.scores.push({
        subject,
        organ: null,
        name: 'Body Weight',
        value: rounded(weight, 1),
        unit: 'g',
        attributes,
      });
    }
    const present = ORGANS.filter((organ) => !(sex === 'M' ? FEMALE : MALE).has(organ));
    for (const organ of present) {
      study.organs.push({ subject, name: organ, attributes: { MISTAT: null } });
      const fileName = `${subject}-${organ.replaceAll(' ', '_')}.svs`;
      study.slides.push({ subject, organ, fileName, attributes: { STAIN: 'HE' } });
      const mean = WEIGHED[organ];
      if (mean !== undefined) {
        const value = rounded(around(mean * (organ === 'LIVER' ? 1 + group.dose / 400 : 1), 0.08), 3);
        study.scores.push({
          subject,
          organ,
          name: 'Organ Weight',
          value,
          unit: 'g',
          attributes: { OMTESTCD: 'WEIGHT' },
        });
      }
      // Lesions grow with the dose, and one in seven is spontaneous, as in every real study.
      const chance = (LESIONS[organ] ? 0.14 : 0.03) + (LESIONS[organ] ? group.dose / 250 : 0);
      const lesions = random() < chance ? 1 + (random() < 0.15 ? 1 : 0) : 0;
      const names =
        lesions === 0 ? [null] : Array.from({ length: lesions }, () => pick(LESIONS[organ] ?? COMMON_LESIONS));
      for (const lesion of names) {
        const grade = Math.min(SEVERITIES.length - 1, Math.floor(random() * 2 + group.dose / 60));
        study.findings.push({
          subject,
          organ,
          fileName,
          name: lesion ?? 'NORMAL',
          severity: lesion === null ? null : (SEVERITIES[grade] as string),
          attributes: {
            MISEQ: study.findings.length + 1,
            MIORRES: lesion ?? 'Within normal limits',
            MIRESCAT: lesion === null ? null : 'NON-NEOPLASTIC',
            MIDY: group.code === 'R' ? 43 : 29,
          },
        });
      }
    }
  }
  return study;
}
